//! What `apply -f` and `plan -f` read: documents in the API's own messages.

mod batch;
mod declared;
mod read;

pub(crate) use batch::Batch;
pub(crate) use declared::Declared;

use std::path::PathBuf;

use crate::failure::Failure;
use crate::schema::Schema;

/// Reads all documents of all files; every mistake in all of them is told at once.
pub(crate) fn read_all(files: &[PathBuf]) -> Result<Declared, Failure> {
    let schema = Schema::new().map_err(|error| Failure::Usage(format!("the API's descriptor: {error}")))?;
    let (mut declared, mut mistakes) = (Declared::default(), Vec::new());
    for file in files {
        for (number, document) in read::documents(file)?.into_iter().enumerate() {
            let place = read::place(file, number);
            match declared::Document::parse(&schema, document) {
                Ok(document) => declared.add(place, document),
                Err(wrong) => mistakes.extend(wrong.into_iter().map(|wrong| format!("{place}: {wrong}"))),
            }
        }
    }
    if !mistakes.is_empty() {
        return Err(Failure::Usage(mistakes.join("\nvipctl: ")));
    }
    if declared.is_empty() {
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        return Err(Failure::Usage(format!("{}: no document in it", names.join(", "))));
    }
    declared.check()?;
    Ok(declared)
}
