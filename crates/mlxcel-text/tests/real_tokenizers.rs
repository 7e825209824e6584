//! Published `tokenizer.json` files, where `MLXCEL_TEST_TOKENIZERS` and its siblings say they lie (`cargo xtask test`
//! fetches them and says so), against the hashes of what the Python package `tokenizers` makes of the same texts.

mod support;

use std::path::{Path, PathBuf};

use mlxcel_text::{
    DetokenizeOptions, Detokenizer, EncodeOptions, SpecialText, SpecialTokens, TextPosition, Tokenizer,
};
use serde_json::Value;
use support::{json, plain, strings};

const BUNDLE: &str = "MLXCEL_TEST_TOKENIZERS";

/// The folder of one tokenizer; without it a test has nothing to show and says so.
fn folder(name: &str) -> Option<PathBuf> {
    let single = format!("MLXCEL_TEST_TOKENIZER_{}", name.to_uppercase());
    if let Some(folder) = std::env::var_os(&single) {
        return Some(folder.into());
    }
    let Some(bundle) = std::env::var_os(BUNDLE) else {
        println!("not run, since {BUNDLE} is not set: `cargo xtask test` sets it");
        return None;
    };
    let folder = Path::new(&bundle).join(name);
    assert!(folder.is_dir(), "neither {single} is set nor is there {}", folder.display());
    Some(folder)
}

/// FNV-1a, 32 bits.
fn hash(bytes: impl IntoIterator<Item = u8>) -> String {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("{:08x}", bytes.into_iter().fold(0x811c_9dc5, step))
}

fn hash_ids(ids: &[u32]) -> String {
    hash(ids.iter().flat_map(|id| id.to_le_bytes()))
}

fn whole() -> EncodeOptions {
    EncodeOptions { special_tokens: SpecialTokens::Parse, add_special_tokens: true }
}

/// The text that comes out one id at a time, which never shows half a character.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], special: SpecialText) -> String {
    let options = DetokenizeOptions { special, position: TextPosition::Start };
    let mut detokenizer = Detokenizer::new(tokenizer, options);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id).expect("decodable")).collect();
    text += &detokenizer.finish().expect("decodable");
    text
}

fn compare(name: &str) {
    let Some(folder) = folder(name) else { return };
    let tokenizer = Tokenizer::from_folder(&folder).expect("a valid folder");
    let fixture = json("real_tokenizers.json");
    let texts = [strings(&json("expected.json")["texts"]), strings(&fixture["more_texts"])].concat();
    let expected = strings(&fixture["expected"][name]);
    assert_eq!(texts.len(), expected.len());
    for (index, (text, expected)) in texts.iter().zip(&expected).enumerate() {
        let ids = tokenizer.encode(text, whole()).expect("encodable");
        let plain = tokenizer.encode(text, plain()).expect("encodable");
        let decoded = |special| tokenizer.decode(&ids, special).expect("decodable");
        let (shown, hidden) = (decoded(SpecialText::Show), decoded(SpecialText::Hide));
        let ours = [hash_ids(&ids), hash_ids(&plain), hash(shown.bytes()), hash(hidden.bytes())].join(" ");
        assert_eq!(
            &ours, expected,
            "{name}, text {index}: {text:?}\nparsed {ids:?}\nplain {plain:?}\nshown {shown:?}\nhidden {hidden:?}\n\
             `make_real.py {name} {index}` prints what is expected"
        );
        assert_eq!(streamed(&tokenizer, &ids, SpecialText::Show), shown, "{name}, text {index}");
        assert_eq!(streamed(&tokenizer, &ids, SpecialText::Hide), hidden, "{name}, text {index}");
    }
}

macro_rules! published {
    ($($test:ident: $name:literal,)*) => {
        $(#[test] fn $test() { compare($name); })*

        #[test]
        fn every_expectation_has_its_test() {
            let fixture = json("real_tokenizers.json");
            let Value::Object(expected) = &fixture["expected"] else { panic!("no expectations") };
            let mut tested = [$($name),*];
            tested.sort_unstable();
            let mut names: Vec<&String> = expected.keys().collect();
            names.sort_unstable();
            assert_eq!(names, tested);
        }
    };
}

published! {
    bert_encodes_and_decodes_like_hugging_face: "bert",
    cl100k_encodes_and_decodes_like_hugging_face: "cl100k",
    deepseek_v3_encodes_and_decodes_like_hugging_face: "deepseek",
    gemma_2_encodes_and_decodes_like_hugging_face: "gemma",
    llama_2_encodes_and_decodes_like_hugging_face: "llama2",
    llama_3_encodes_and_decodes_like_hugging_face: "llama3",
    mistral_encodes_and_decodes_like_hugging_face: "mistral",
    o200k_encodes_and_decodes_like_hugging_face: "o200k",
    qwen_2_5_encodes_and_decodes_like_hugging_face: "qwen",
    t5_encodes_and_decodes_like_hugging_face: "t5",
    gemma_3_encodes_and_decodes_like_hugging_face: "gemma3",
    gpt_oss_encodes_and_decodes_like_hugging_face: "gptoss",
    llama_3_2_encodes_and_decodes_like_hugging_face: "llama32",
    qwen_3_encodes_and_decodes_like_hugging_face: "qwen3",
}
