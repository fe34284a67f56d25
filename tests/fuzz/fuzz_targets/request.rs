//! Request → command → dispatch → apply on the fake kernel. A refusal changes nothing; what is accepted is in the fake
//! kernel, and the digest of the state is that of a state told the same in one go.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use vipd::api::convert::operation;
use vipd::api::convert::path::converted;
use vipd_engine::fake::{FakeEngine, FakeKernel};
use vipd_engine::{Runner, Steps as _};
use vipd_model::{
    Actor, Algorithm, Command, Desired, EngineKind, Engines, Limits, Millis, Mode, OwnerName, Request, select,
};
use vipd_proto::v1;

fuzz_target!(|requests: Vec<Vec<u8>>| {
    let (Ok(owner), kernel) = (OwnerName::new("fuzz"), FakeKernel::default()) else { return };
    let fake = FakeEngine::new(EngineKind::Userspace, kernel);
    let mut engines = Engines { order: vec![EngineKind::Userspace], ..Engines::default() };
    engines.abilities.insert(EngineKind::Userspace, vipd_engine::Engine::ability(&fake));
    let mut desired = Desired::new(engines, Limits::default());
    let Ok(mut runner) = Runner::start(fake) else { return };

    for (at, bytes) in requests.iter().enumerate() {
        let Ok(message) = v1::ApplyRequest::decode(bytes.as_slice()) else { continue };
        let operations = converted(|_, problems| {
            let mode = operation::parse_mode(message.mode, problems)?;
            operation::parse_operations(message.operations, mode, &owner, problems)
        });
        let Ok(operations) = operations else { continue };
        let request = Request::Apply { operations: operations.converted, mode: Mode::Each };
        let command =
            Command { actor: Actor::default(), at: Millis(at as u64), session: 0, note: String::new(), request };
        let before = desired.digest();
        match desired.dispatch(&command) {
            Err(rejection) => {
                assert!(!rejection.problems.is_empty(), "a refusal without a reason");
                assert_eq!(desired.digest(), before, "refused, and changed");
            }
            Ok(delta) => {
                let batch = delta.services.iter().map(|change| {
                    let selected = change.after.as_ref().map(|s| select(s, EngineKind::Userspace, Algorithm::Rr));
                    (change.key.clone(), selected)
                });
                runner.make(batch.collect());
                let keys: Vec<_> = delta.services.iter().map(|change| change.key.clone()).collect();
                runner.finish(&keys);
                assert!(desired.dispatch(&command).is_ok_and(|again| !again.changed()), "a repeat changed something");
            }
        }
    }
    let wanted = runner.wanted();
    assert_eq!(runner.steps_mut().observe().map(|o| o.objects), Ok(wanted), "the kernel is not as the model says");
});
