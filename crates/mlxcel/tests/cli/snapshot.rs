//! Wording that is pinned: output is compared with a file under `tests/snapshots`, and a change is seen in review.
//! Numbers and behaviour are other tests' business.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Finished, run};

/// Set to anything, it writes the files instead of comparing them.
const RENEW: &str = "MLXCEL_RENEW";

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

/// Compares with `tests/snapshots/NAME.txt`.
pub fn check(name: &str, got: &str) {
    check_file(&folder().join(format!("{name}.txt")), got);
}

/// Compares with any file that is made from the program's output.
pub fn check_file(path: &Path, got: &str) {
    if std::env::var_os(RENEW).is_some() {
        fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("the folder can be made");
        fs::write(path, got).expect("the snapshot can be written");
        return;
    }
    // Git may have turned line ends into those of the system.
    let wanted = fs::read_to_string(path).unwrap_or_default().replace("\r\n", "\n");
    let mut lines = (wanted.split('\n'), got.split('\n'));
    let pairs = std::iter::from_fn(|| match (lines.0.next(), lines.1.next()) {
        (None, None) => None,
        pair => Some(pair),
    });
    if let Some((index, (want, have))) = pairs.enumerate().find(|(_, (want, have))| want != have) {
        panic!(
            "{} is stale at line {}:\n  it has    {want:?}\n  it is now {have:?}\nIf that is meant, run: {RENEW}=1 cargo \
             test -p mlxcel --test cli",
            path.display(),
            index + 1
        );
    }
}

/// A command and what came of it, as one would see it in a terminal. `places` are paths and what stands for them.
pub fn transcript(arguments: &[&str], places: &[(&str, &str)]) -> String {
    let Finished { code, stdout, stderr } = run(arguments);
    let code = match code {
        Some(0) => String::new(),
        code => format!("[exit code {}]\n", code.expect("it was not killed")),
    };
    let mut text = format!("$ mlxcel {}\n{stdout}{stderr}{code}", arguments.join(" "));
    for (path, name) in places {
        text = text.replace(path, name);
    }
    // The parser pads some empty lines, which no editor keeps.
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
