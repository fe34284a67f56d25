//! Files to values: YAML of several documents; JSON is YAML.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::Value;

use crate::failure::Failure;

/// Standard input, on the command line.
const STDIN: &str = "-";

/// Values that aliases may stand for, all together: enough for any list that a person repeats.
const REPLAYED: usize = 100_000;

/// The documents of one file.
pub(super) fn documents(file: &Path) -> Result<Vec<Value>, Failure> {
    let text = text(file).map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    parse(&text).map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))
}

/// Where a document stands, for messages.
pub(super) fn place(file: &Path, number: usize) -> String {
    let file = if file == Path::new(STDIN) { String::new() } else { format!("{}, ", file.display()) };
    format!("{file}document {}", number + 1)
}

fn text(file: &Path) -> io::Result<String> {
    if file != Path::new(STDIN) {
        return fs::read_to_string(file);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

fn parse(text: &str) -> Result<Vec<Value>, String> {
    // The bounds of the parser are made for strangers' input; this is the caller's own file, and how much a call may
    // hold is vipd's to say. Aliases stay bounded: a small file must not grow without end.
    let mut options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    if let Some(budget) = &mut options.budget {
        for bound in [
            &mut budget.max_events,
            &mut budget.max_nodes,
            &mut budget.max_total_scalar_bytes,
            &mut budget.max_documents,
        ] {
            *bound = usize::MAX;
        }
    }
    options.alias_limits.max_total_replayed_events = REPLAYED;
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn several_documents_of_yaml_and_json() {
        let text = "---\nservice: {name: web}\n---\n{\"service\": {\"name\": \"dns\"}}\n---\n# nothing\n";
        assert_eq!(parse(text).unwrap(), [json!({"service": {"name": "web"}}), json!({"service": {"name": "dns"}})]);
    }

    #[test]
    fn words_stay_words() {
        let text = "a: no\nb: on\nc: 10.96.0.10\nd: true\ne: 'true'\nf: fd96::10\ng: 012";
        let read = &parse(text).unwrap()[0];
        assert_eq!((&read["a"], &read["b"], &read["c"]), (&json!("no"), &json!("on"), &json!("10.96.0.10")));
        assert_eq!((&read["d"], &read["e"], &read["f"]), (&json!(true), &json!("true"), &json!("fd96::10")));
    }

    #[test]
    fn a_key_twice_and_broken_yaml_are_errors_with_a_line() {
        for text in ["service: {name: a}\nservice: {name: b}", "service: {name: a", "a: [1, 2"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("line"), "{text}: {error}");
        }
    }

    #[test]
    fn a_node_of_many_services_is_no_attack() {
        let one =
            "service: {name: web}\nendpoints: [{address: 10.1.0.2, port: 80}, {address: 10.1.0.3, port: 80}]\n---\n";
        assert_eq!(parse(&one.repeat(2_000)).unwrap().len(), 2_000);
    }

    #[test]
    fn aliases_do_not_grow_without_end() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let below = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", vec![below; 10].join(", "));
        }
        assert!(parse(&text).is_err());
    }
}
