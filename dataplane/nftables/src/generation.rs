//! Notices that somebody else has changed the rule set, by the kernel's generation number alone. Pure.
//!
//! Every commit of anybody's to any table moves the number by one. After a commit of ours it must be ours plus one: more
//! means that somebody came between.

/// What we know of the rule set's generation.
#[derive(Debug, Default)]
pub(crate) struct Generation {
    known: Option<u32>,
    moved: bool,
}

impl Generation {
    /// All of ours was read at this generation.
    pub(crate) fn read_at(&mut self, now: u32) {
        *self = Self { known: Some(now), moved: false };
    }

    /// So many commits of ours have led here. One that changed nothing does not move it.
    pub(crate) fn committed(&mut self, commits: u32, now: u32) {
        if let Some(known) = self.known {
            self.moved |= now.wrapping_sub(known) > commits;
        }
        self.known = Some(now);
    }

    /// Whether somebody else was noticed before, whatever happens now.
    pub(crate) fn take_noticed(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Whether somebody else has committed since this was last asked.
    pub(crate) fn take_moved(&mut self, now: u32) -> bool {
        let moved = self.moved || self.known != Some(now);
        self.read_at(now);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_between_ours_is_noticed_once() {
        let mut generation = Generation::default();
        generation.read_at(7);
        generation.committed(2, 9);
        assert!(!generation.take_moved(9));
        generation.committed(1, 11);
        assert!(generation.take_moved(11));
        assert!(!generation.take_moved(11));
        assert!(generation.take_moved(12));
        generation.read_at(u32::MAX);
        generation.committed(1, 0);
        assert!(!generation.take_moved(0));
    }
}
