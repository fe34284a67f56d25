//! The fake kernel answers mistakes as the real one does.

use super::*;

fn add(name: &str) -> Operation<String, String> {
    Operation::Add { key: name.to_owned(), value: "x".to_owned() }
}

fn remove(name: &str) -> Operation<String, String> {
    Operation::Remove { key: name.to_owned(), before: "x".to_owned() }
}

fn message(kernel: &FakeKernel, operations: &[Operation<String, String>]) -> String {
    kernel.transact(operations).unwrap_err().message
}

#[test]
fn the_same_error_for_the_same_mistake() {
    let kernel = FakeKernel::default();
    kernel.transact(&[add("a")]).unwrap();
    assert_eq!(message(&kernel, &[add("a")]), "a: File exists");
    assert_eq!(message(&kernel, &[remove("b")]), "b: No such file or directory");
    let change = Operation::Change { key: "b".to_owned(), before: "x".to_owned(), after: "y".to_owned() };
    assert_eq!(message(&kernel, &[change]), "b: No such file or directory");
    kernel.refuse("c");
    assert_eq!(message(&kernel, &[add("c")]), "c: Operation not supported");
    kernel.limit(Some(1));
    assert_eq!(message(&kernel, &[add("d")]), "d: Too many open files in system");
}

#[test]
fn a_transaction_is_all_or_nothing_and_every_message_counts() {
    let kernel = FakeKernel::default();
    kernel.transact(&[add("a"), add("b")]).unwrap();
    let change = Operation::Change { key: "b".to_owned(), before: "x".to_owned(), after: "y".to_owned() };
    assert_eq!(kernel.transact(&[remove("a"), change, add("c"), add("c")]).unwrap_err(), {
        ApplyError::nothing("c: File exists")
    });
    assert_eq!(kernel.dump(), "a x\nb x\n");
    assert_eq!((kernel.messages(), kernel.transactions()), (6, 2));
}

#[test]
fn engines_and_guard_see_their_own_objects_only() {
    let kernel = FakeKernel::default();
    for name in ["guard capture a", "userspace frontend a", "userspace2 frontend a", "foreign"] {
        kernel.write_behind_us(name, "x");
    }
    let names = |steps: &mut dyn FnMut() -> Objects<String, String>| steps().into_keys().collect::<Vec<_>>();
    let mut engine = FakeEngine::new(EngineKind::Userspace, kernel.clone());
    let mut guard = FakeGuard::new(kernel.clone());
    assert_eq!(names(&mut || engine.observe().unwrap().objects), ["userspace frontend a"]);
    assert_eq!(names(&mut || guard.observe().unwrap().objects), ["guard capture a"]);
    assert!(engine.disturbed() && guard.disturbed());
    assert!(!engine.disturbed(), "said once");
}

#[test]
fn a_watcher_sees_every_state_in_force() {
    let kernel = FakeKernel::default();
    let (seen, see) = std::sync::mpsc::channel();
    kernel.on_commit(move |objects| seen.send(objects.len()).unwrap());
    kernel.transact(&[add("a"), add("b")]).unwrap();
    kernel.transact(&[add("a")]).unwrap_err();
    kernel.transact(&[remove("a")]).unwrap();
    assert_eq!(see.try_iter().collect::<Vec<_>>(), [2, 1]);
}
