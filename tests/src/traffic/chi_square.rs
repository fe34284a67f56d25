//! Pearson's chi-square test of goodness of fit: how likely is a spread at least this uneven, if the shares are true?

/// The p-value of `observed` counts under `shares` (any scale; a share of zero must have a count of zero).
///
/// Fewer than two positive shares leave nothing to test: 1. A count where no share is: 0.
#[must_use]
pub fn p_value(observed: &[f64], shares: &[f64]) -> f64 {
    let (total, whole): (f64, f64) = (observed.iter().sum(), shares.iter().sum());
    let mut statistic = 0.0;
    let mut classes = 0;
    for (&count, &share) in observed.iter().zip(shares) {
        if share <= 0.0 {
            if count > 0.0 {
                return 0.0;
            }
            continue;
        }
        let expected = total * share / whole;
        statistic += (count - expected).powi(2) / expected;
        classes += 1;
    }
    if classes < 2 || total == 0.0 {
        return 1.0;
    }
    upper_gamma(f64::from(classes - 1) / 2.0, statistic / 2.0)
}

/// The regularised upper incomplete gamma function Q(a, x), by series below `a + 1` and by continued fraction
/// (Lentz) above: DLMF 8.7.1 and 8.9.2.
fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for n in 1..10_000 {
            term *= x / (a + f64::from(n));
            sum += term;
            if term < sum * 1e-15 {
                break;
            }
        }
        return (1.0 - front * sum).max(0.0);
    }
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1.0 / TINY, 1.0 / b);
    let mut fraction = d;
    for n in 1..10_000 {
        let n = f64::from(n);
        let an = -n * (n - a);
        b += 2.0;
        d = an.mul_add(d, b);
        d = 1.0 / if d.abs() < TINY { TINY } else { d };
        c = b + an / c;
        c = if c.abs() < TINY { TINY } else { c };
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// ln Γ(x) for x > 0 by Stirling's series (DLMF 5.11.1), shifted to where it is exact enough.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 15.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / x;
    shift + (x - 0.5).mul_add(x.ln(), -x) + 0.5 * std::f64::consts::TAU.ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Critical values at p = 0.05 and 0.001 from any printed chi-square table.
    #[test]
    fn agrees_with_the_printed_table() {
        for (degrees, statistic, p) in [
            (1.0, 3.841, 0.05),
            (2.0, 5.991, 0.05),
            (10.0, 18.307, 0.05),
            (100.0, 124.342, 0.05),
            (2.0, 13.816, 0.001),
            (30.0, 59.703, 0.001),
        ] {
            let got = upper_gamma(degrees / 2.0, statistic / 2.0);
            assert!((got / p - 1.0_f64).abs() < 0.005, "{degrees} degrees, {statistic}: {got}, table says {p}");
        }
    }

    #[test]
    fn a_count_without_a_share_is_impossible() {
        assert_eq!(p_value(&[5.0, 1.0], &[1.0, 0.0]), 0.0);
    }
}
