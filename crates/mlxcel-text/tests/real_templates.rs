//! Published chat templates, where `MLXCEL_TEST_LLAMA_CPP` says they lie (`cargo xtask test` fetches them and says so),
//! against hashes of what Python's Jinja2 renders in the environment of transformers.

mod support;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use mlxcel_text::{ChatRequest, ChatTemplate, Error};
use serde_json::Value;

/// How many of the renderings that fail in Python are none of `raise_exception`'s doing and succeed here.
const LENIENT: usize = 41;
const VARIABLE: &str = "MLXCEL_TEST_LLAMA_CPP";

/// FNV-1a, 32 bits.
fn hash(text: &str) -> String {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("{:08x}", text.bytes().fold(0x811c_9dc5, step))
}

fn request(value: &Value, now: SystemTime) -> ChatRequest {
    let list = |name: &str| value[name].as_array().cloned();
    ChatRequest {
        messages: list("messages").expect("messages"),
        tools: list("tools"),
        documents: list("documents"),
        add_generation_prompt: value["add_generation_prompt"] == true,
        continue_last_message: false,
        variables: value["variables"].as_object().cloned().unwrap_or_default(),
        now: Some(now),
    }
}

/// What the fixture says of a rendering.
fn short(rendered: &Result<String, Error>) -> String {
    match rendered {
        Ok(text) => hash(text),
        Err(Error::TemplateRaised { message }) => format!("!{}", hash(message)),
        Err(_) => "error".to_owned(),
    }
}

#[test]
fn every_published_template_renders_as_python_renders_it() {
    let Some(folder) = std::env::var_os(VARIABLE).map(|folder| PathBuf::from(folder).join("templates"))
    else {
        println!("not run, since {VARIABLE} is not set: `cargo xtask test` sets it");
        return;
    };
    let fixture = support::json("real_templates.json");
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(fixture["now_unix"].as_u64().expect("seconds"));
    let requests: Vec<ChatRequest> =
        fixture["requests"].as_array().expect("requests").iter().map(|value| request(value, now)).collect();
    let expected = fixture["expected"].as_object().expect("templates");
    assert_eq!((expected.len(), requests.len()), (70, 21));
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let tokens = tokens.into();
    let (mut different, mut lenient) = (Vec::new(), 0);
    for (name, expected) in expected {
        let path = folder.join(name);
        let source = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let template = ChatTemplate::new(&source, &tokens).unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected = expected.as_str().expect("hashes").split(' ');
        for (index, (request, expected)) in requests.iter().zip(expected).enumerate() {
            let rendered = template.render(request);
            if expected == "error" && rendered.is_ok() {
                lenient += 1;
            } else if short(&rendered) != expected {
                different.push(format!("{name} {index}: {expected}, but {rendered:?}"));
            }
        }
    }
    assert!(
        different.is_empty(),
        "`make_real_templates.py NAME INDEX` prints what is expected:\n{}",
        different.join("\n")
    );
    // Python stops at a loop over none, at a generator made JSON and at a method that a text does not have. Here the
    // first two mean something sensible, so a template made for tools also renders without any.
    assert_eq!(lenient, LENIENT, "renderings that fail in Python only");
}
