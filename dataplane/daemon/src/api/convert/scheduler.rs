//! Schedulers.

use vipd_model::{Algorithm, Fallback, Scheduler};
use vipd_proto::v1;

use super::path::{Path, Problems};
use super::scalar;

/// A scheduler.
pub fn parse(message: &v1::Scheduler, at: &Path<'_>, problems: &mut Problems) -> Option<Scheduler> {
    let algorithm = scalar::known(message.algorithm, &at.field("algorithm"), problems).map(parse_algorithm);
    let fallback = scalar::known(message.fallback, &at.field("fallback"), problems).map(|value| match value {
        v1::scheduler::Fallback::Unspecified | v1::scheduler::Fallback::Refused => Fallback::Refused,
        v1::scheduler::Fallback::Nearest => Fallback::Nearest,
    });
    Some(Scheduler { algorithm: algorithm?, hash_source_port: message.hash_source_port, fallback: fallback? })
}

/// A scheduler as replies show it.
#[must_use]
pub fn message(scheduler: &Scheduler) -> v1::Scheduler {
    let fallback = match scheduler.fallback {
        Fallback::Refused => v1::scheduler::Fallback::Refused,
        Fallback::Nearest => v1::scheduler::Fallback::Nearest,
    };
    v1::Scheduler {
        algorithm: algorithm(scheduler.algorithm).into(),
        hash_source_port: scheduler.hash_source_port,
        fallback: fallback.into(),
    }
}

/// An algorithm's name in the API.
#[must_use]
pub fn algorithm(algorithm: Algorithm) -> v1::scheduler::Algorithm {
    use v1::scheduler::Algorithm as A;
    match algorithm {
        Algorithm::Default => A::Unspecified,
        Algorithm::Rr => A::Rr,
        Algorithm::Wrr => A::Wrr,
        Algorithm::Random => A::Random,
        Algorithm::Lc => A::Lc,
        Algorithm::Wlc => A::Wlc,
        Algorithm::Sh => A::Sh,
        Algorithm::Mh => A::Mh,
        Algorithm::Dh => A::Dh,
        Algorithm::Sed => A::Sed,
        Algorithm::Nq => A::Nq,
        Algorithm::Lblc => A::Lblc,
        Algorithm::Lblcr => A::Lblcr,
        Algorithm::Fo => A::Fo,
        Algorithm::Ovf => A::Ovf,
        Algorithm::P2c => A::P2c,
    }
}

fn parse_algorithm(algorithm: v1::scheduler::Algorithm) -> Algorithm {
    use v1::scheduler::Algorithm as A;
    match algorithm {
        A::Unspecified => Algorithm::Default,
        A::Rr => Algorithm::Rr,
        A::Wrr => Algorithm::Wrr,
        A::Random => Algorithm::Random,
        A::Lc => Algorithm::Lc,
        A::Wlc => Algorithm::Wlc,
        A::Sh => Algorithm::Sh,
        A::Mh => Algorithm::Mh,
        A::Dh => Algorithm::Dh,
        A::Sed => Algorithm::Sed,
        A::Nq => Algorithm::Nq,
        A::Lblc => Algorithm::Lblc,
        A::Lblcr => Algorithm::Lblcr,
        A::Fo => Algorithm::Fo,
        A::Ovf => Algorithm::Ovf,
        A::P2c => Algorithm::P2c,
    }
}
