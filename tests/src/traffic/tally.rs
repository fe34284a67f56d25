//! Many outcomes: who answered how often, what source they saw, how long refusals took, and whether a spread is even.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Outcome, chi_square};

/// Below this p-value a spread is not what was promised. One run in 100,000 fails by chance alone: with a few hundred
/// checks a run, a false alarm every few hundred runs.
pub const SIGNIFICANCE: f64 = 1e-5;

/// What happened to many attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<String, u64>,
    sources: BTreeSet<(String, IpAddr)>,
    order: Vec<String>,
    slowest: Duration,
    answered: u64,
}

impl Tally {
    /// Counts one more.
    pub fn add(&mut self, outcome: &Outcome) {
        let word = outcome.word().to_owned();
        *self.counts.entry(word.clone()).or_default() += 1;
        self.order.push(word);
        self.answered += u64::from(outcome.by().is_some());
        self.sources.extend(outcome.by().map(str::to_owned).zip(outcome.seen()));
        if let Outcome::Refused { after } | Outcome::Answered { after, .. } = outcome {
            self.slowest = self.slowest.max(*after);
        }
    }

    /// How often this server answered, or this word (`refused`, `reset`, `timed out`, `unsendable`) was the end.
    #[must_use]
    pub fn count(&self, word: &str) -> u64 {
        self.counts.get(word).copied().unwrap_or(0)
    }

    /// All attempts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Attempts that some server answered.
    #[must_use]
    pub const fn answered(&self) -> u64 {
        self.answered
    }

    /// The words in the order in which they happened.
    #[must_use]
    pub fn order(&self) -> &[String] {
        &self.order
    }

    /// Which server saw which source address.
    #[must_use]
    pub const fn sources(&self) -> &BTreeSet<(String, IpAddr)> {
        &self.sources
    }

    /// True if some server saw this source address.
    #[must_use]
    pub fn was_seen(&self, source: IpAddr) -> bool {
        self.sources.iter().any(|(_, seen)| *seen == source)
    }

    /// The slowest answer or refusal.
    #[must_use]
    pub const fn slowest(&self) -> Duration {
        self.slowest
    }

    /// These counts and nothing else.
    ///
    /// # Errors
    /// Says what was counted instead.
    pub fn is_exactly(&self, expected: &[(&str, u64)]) -> Result<()> {
        let expected: BTreeMap<String, u64> =
            expected.iter().filter(|(_, count)| *count > 0).map(|&(word, count)| (word.to_owned(), count)).collect();
        ensure!(self.counts == expected, "expected exactly {expected:?}, counted {self}");
        Ok(())
    }

    /// Every attempt ended in this word.
    ///
    /// # Errors
    /// Says what was counted instead.
    pub fn is_all(&self, word: &str) -> Result<()> {
        ensure!(self.total() > 0 && self.count(word) == self.total(), "expected only {word:?}, counted {self}");
        Ok(())
    }

    /// Drawn by these shares (they need not sum to one): chi-square, [`SIGNIFICANCE`]. Nothing else may have happened.
    ///
    /// # Errors
    /// Says the p-value and what was counted.
    pub fn is_drawn_from(&self, shares: &[(&str, f64)]) -> Result<()> {
        let strangers: Vec<&String> = self
            .counts
            .keys()
            .filter(|word| !shares.iter().any(|(name, share)| name == word && *share > 0.0))
            .collect();
        ensure!(strangers.is_empty(), "unexpected {strangers:?} in {self}, expected shares {shares:?}");
        let observed: Vec<f64> = shares.iter().map(|(name, _)| self.count(name) as f64).collect();
        let weights: Vec<f64> = shares.iter().map(|(_, share)| *share).collect();
        let p = chi_square::p_value(&observed, &weights);
        ensure!(p > SIGNIFICANCE, "counted {self}, shares {shares:?}: p = {p:.2e}");
        Ok(())
    }

    /// Exact to one request: what a round robin gives, by weight, over a whole number of turns or not.
    ///
    /// # Errors
    /// Says what was counted.
    pub fn is_in_turn(&self, shares: &[(&str, f64)]) -> Result<()> {
        let whole: f64 = shares.iter().map(|(_, share)| share).sum();
        for (name, share) in shares {
            let due = self.total() as f64 * share / whole;
            let off = (self.count(name) as f64 - due).abs();
            ensure!(off <= 1.0, "{name} is due {due:.1} of {}, counted {self}", self.total());
        }
        Ok(())
    }
}

impl FromIterator<Outcome> for Tally {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        let mut tally = Self::default();
        for outcome in outcomes {
            tally.add(&outcome);
        }
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.counts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(counts: &[(&str, usize)]) -> Tally {
        let seen = ([10, 0, 0, 1], 1).into();
        let answer = |by: &str| Outcome::Answered { by: by.to_owned(), seen, after: Duration::ZERO };
        counts.iter().flat_map(|&(by, count)| std::iter::repeat_n(answer(by), count)).collect()
    }

    #[test]
    fn an_even_spread_passes_and_a_pinned_one_does_not() {
        let shares = [("b1", 1.0), ("b2", 1.0), ("b3", 1.0)];
        assert!(tally(&[("b1", 101), ("b2", 95), ("b3", 104)]).is_drawn_from(&shares).is_ok());
        assert!(tally(&[("b1", 300)]).is_drawn_from(&shares).is_err());
        assert!(tally(&[("b1", 100), ("b2", 100), ("b3", 100), ("b4", 1)]).is_drawn_from(&shares).is_err());
    }

    #[test]
    fn a_refusal_among_answers_is_not_an_even_spread() {
        let mut spread = tally(&[("b1", 50), ("b2", 50)]);
        spread.add(&Outcome::Refused { after: Duration::ZERO });
        assert!(spread.is_drawn_from(&[("b1", 1.0), ("b2", 1.0)]).is_err());
        assert!(spread.is_all("b1").is_err());
    }

    #[test]
    fn turns_are_exact_to_one() {
        let shares = [("b1", 1.0), ("b2", 3.0)];
        assert!(tally(&[("b1", 10), ("b2", 30)]).is_in_turn(&shares).is_ok());
        assert!(tally(&[("b1", 12), ("b2", 28)]).is_in_turn(&shares).is_err());
    }
}
