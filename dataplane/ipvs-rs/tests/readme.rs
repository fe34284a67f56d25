//! The README shows what `examples/first.rs` does, to the letter; that it does it is run on a real kernel.

#[test]
fn the_readme_shows_the_example() {
    let (readme, example) = (include_str!("../README.md"), include_str!("../examples/first.rs"));
    let (_, code) = example.split_once("\n\n").unwrap();
    assert!(readme.contains(code), "README.md does not have the code of examples/first.rs");
}
