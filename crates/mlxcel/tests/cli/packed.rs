//! Packed weights that are kept: where, what is said about them, and that they change no answer. Whether they are kept depends on
//! how the system has files in memory, which is judged by whether the first start left any.

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_platform::files;
use tempfile::TempDir;

use crate::support::{Finished, finished, fixture, mlxcel, read_json, run_json};

/// A model of which more is packed than what is packed at every start.
struct Model {
    folder: TempDir,
}

impl Model {
    fn new() -> Self {
        let model = Model { folder: TempDir::new().expect("a temporary folder") };
        let mut config = read_json(&fixture("golden/llama/f32/config.json"));
        config["vocab_size"] = 40_000.into();
        let shape = model.at("config.json");
        fs::write(&shape, config.to_string()).expect("writable");
        run_json(&["convert", "--random", text(&shape), "-o", text(&model.at("m.gguf")), "--type", "q8_0"]);
        model
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A greedy answer, with more arguments and variables.
    fn answer(&self, arguments: &[&str], variables: &[(&str, &Path)]) -> Finished {
        let file = self.at("m.gguf");
        let asked = ["generate", "-m", text(&file), "--prompt-tokens", "5,6,7", "-n", "4", "--temp", "0"];
        let mut command = mlxcel(&[&asked[..], &["--ignore-eos", "--engine", "cpu"], arguments].concat());
        if !variables.is_empty() {
            command.env_remove("MLXCEL_PACKED_CACHE");
        }
        let done = finished(command.envs(variables.iter().copied()).output().expect("the binary runs"));
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Every file below a folder, and what tells its state.
fn there(folder: &Path) -> Vec<(PathBuf, [u64; 6])> {
    let below =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = below(folder).flat_map(|folder| below(&folder).collect::<Vec<_>>());
    files.map(|path| (path.clone(), files::stamp(&fs::metadata(path).expect("it is there")))).collect()
}

#[test]
fn what_was_packed_before_changes_no_answer() {
    let model = Model::new();
    let (named, cache) = (model.at("named"), model.at("cache"));
    let flag = ["--packed-cache", text(&named)];
    let expected = model.answer(&[], &[]);
    for _ in 0..2 {
        let before = there(&named);
        let done = model.answer(&flag, &[]);
        assert_eq!(
            (&done.stdout, done.stderr.contains("note")),
            (&expected.stdout, false),
            "{}",
            done.stderr
        );
        assert!(before.is_empty() || there(&named) == before, "it is written once");
    }
    let is_kept = there(&named).len();
    assert!(is_kept <= 1, "{:?}", there(&named));
    model.answer(&[], &[("MLXCEL_CACHE", &cache)]);
    assert_eq!(there(&cache.join("packed")).len(), is_kept, "it is in the cache by itself");
    let other = model.at("other");
    model.answer(&[], &[("MLXCEL_CACHE", &cache), ("MLXCEL_PACKED_CACHE", &other)]);
    assert_eq!(there(&other).len(), is_kept);
    let nothing = model.at("nothing");
    let off = Path::new("off");
    model.answer(&[], &[("MLXCEL_CACHE", &nothing), ("MLXCEL_PACKED_CACHE", off)]);
    model.answer(&["--packed-cache", "off"], &[("MLXCEL_PACKED_CACHE", &nothing)]);
    assert!(!nothing.exists());
}

#[test]
fn what_is_wrong_with_packed_weights_is_a_note() {
    let model = Model::new();
    let expected = model.answer(&[], &[]);
    let file = model.at("file");
    fs::write(&file, "").expect("writable");
    let done = model.answer(&["--packed-cache", text(&file)], &[]);
    assert_eq!(done.stdout, expected.stdout);
    assert!(done.stderr.contains("note: packed weights are not kept: "), "{}", done.stderr);
    let named = model.at("named");
    let flag = ["--packed-cache", text(&named)];
    model.answer(&flag, &[]);
    for (path, _) in there(&named) {
        let mut bytes = fs::read(&path).expect("readable");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::remove_file(&path).expect("it can be removed");
        fs::write(&path, bytes).expect("writable");
        let done = model.answer(&flag, &[]);
        assert_eq!(done.stdout, expected.stdout);
        assert!(done.stderr.contains("note: packed weights in "), "{}", done.stderr);
    }
}
