//! Runs the binary and reads what the fixtures expect of it. Expectations are not made here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The binary, cut off from models and settings of the machine.
pub fn mlxcel(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    command.args(arguments);
    let colours = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"];
    // An engine that only some machines have is not listed unless a test asks for it.
    let engines = ["MLXCEL_MLX_HOME", "MLXCEL_MLX_SHIM", "MLXCEL_MLX_MODE", "MLXCEL_MLX_DEVICE"];
    for variable in colours.iter().chain(&engines) {
        command.env_remove(variable);
    }
    // What tests pack is of no use to anybody else.
    command.env("MLXCEL_PACKED_CACHE", "off");
    command
}

/// What a finished process left.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn run(arguments: &[&str]) -> Finished {
    finished(mlxcel(arguments).output().expect("the binary runs"))
}

pub fn finished(output: Output) -> Finished {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Finished { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The object that a successful run with `--json` prints.
pub fn run_json(arguments: &[&str]) -> Value {
    let done = run(&[arguments, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.stderr);
    assert_eq!(done.stdout.lines().count(), 1, "one object on one line");
    serde_json::from_str(&done.stdout).expect("the output is JSON")
}

pub fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of token ids")
}

pub fn comma_separated(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

/// A fixture's path as an argument.
pub fn fixture_argument(path: &str) -> String {
    fixture(path).to_str().expect("the workspace's path is UTF-8").to_string()
}

pub fn read_json(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A copy of a tiny model whose files can be changed.
pub struct ModelCopy {
    folder: TempDir,
}

impl ModelCopy {
    /// The llama with a vocabulary of 263 tokens and a context of 512.
    pub fn llama() -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        for name in ["config.json", "model.safetensors"] {
            let from = fixture("golden/llama/f32").join(name);
            fs::copy(from, folder.path().join(name)).expect("fixtures are readable");
        }
        ModelCopy { folder }
    }

    /// The same with a tokenizer: token `i` is byte `i`, 256 and 257 begin and end a message of a chat.
    pub fn with_tokenizer() -> Self {
        let copy = Self::llama();
        copy.write("tokenizer.json", &byte_tokenizer());
        copy
    }

    /// The same with a chat template.
    pub fn with_chat() -> Self {
        let copy = Self::with_tokenizer();
        let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        copy.write("tokenizer_config.json", &json!({ "chat_template": template }));
        copy
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn argument(&self) -> &str {
        self.path().to_str().expect("temporary paths are UTF-8")
    }

    pub fn write(&self, name: &str, content: &Value) {
        fs::write(self.path().join(name), content.to_string()).expect("a temporary file can be written");
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).expect("the file is there");
    }

    /// Changes one field of the configuration.
    pub fn configure(&self, field: &str, value: Value) {
        let mut config = read_json(&self.path().join("config.json"));
        config[field] = value;
        self.write("config.json", &config);
    }
}

/// Bytes as the printable characters that byte-level vocabularies spell them with: those that are printable in
/// Latin-1 stand for themselves, the others follow from U+0100.
fn byte_tokenizer() -> Value {
    let is_printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100u32;
    let mut vocabulary = serde_json::Map::new();
    for byte in 0..=255u8 {
        let spelled = if is_printable(byte) {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).expect("a letter")
        };
        vocabulary.insert(spelled.to_string(), byte.into());
    }
    let special = |id: u32, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    };
    let level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(256, "<|im_start|>"), special(257, "<|im_end|>")],
        "pre_tokenizer": level, "decoder": level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                   "vocab": vocabulary, "merges": [] },
    })
}
