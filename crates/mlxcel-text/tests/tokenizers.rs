//! Encoding and decoding against what Hugging Face `tokenizers` and `sentencepiece` made of the same texts.

mod support;

use mlxcel_text::{
    DetokenizeOptions, Detokenizer, EncodeOptions, Error, GgufVocab, SpecialText, SpecialTokens,
    TextPosition, Tokenizer,
};
use serde_json::Value;
use support::{bpe_vocab, folder, gguf, id_lists, json, parsed, plain, spm_vocab, strings, wordpiece_vocab};

fn assert_encodes(tokenizer: &Tokenizer, options: EncodeOptions, expected: &Value) {
    let texts = strings(&json("expected.json")["texts"]);
    assert!(texts.len() >= 60);
    for (text, ids) in texts.iter().zip(id_lists(expected)) {
        assert_eq!(tokenizer.encode(text, options).expect("encodable"), ids, "{text:?}");
    }
}

fn assert_decodes(tokenizer: &Tokenizer, ids: &Value, expected: &Value) {
    for (ids, text) in id_lists(ids).iter().zip(strings(expected)) {
        assert_eq!(tokenizer.decode(ids, SpecialText::Show).expect("decodable"), text, "{ids:?}");
    }
}

#[test]
fn a_byte_level_folder_encodes_and_decodes_like_hugging_face() {
    let (tokenizer, expected) = (folder("bpe"), &json("expected.json")["bpe"]["folder"]);
    assert_encodes(&tokenizer, parsed(), &expected["parsed"]);
    assert_encodes(&tokenizer, plain(), &expected["plain"]);
    assert_decodes(&tokenizer, &expected["parsed"], &expected["decoded"]);
}

#[test]
fn every_gguf_pre_tokenizer_encodes_like_the_models_own_tokenizer() {
    let expected = &json("expected.json")["bpe"]["gguf"];
    for (pre, expected) in expected.as_object().expect("pre-tokenizers") {
        let tokenizer = gguf(bpe_vocab(pre));
        assert_encodes(&tokenizer, parsed(), &expected["parsed"]);
        assert_encodes(&tokenizer, plain(), &expected["plain"]);
        assert_decodes(&tokenizer, &expected["parsed"], &expected["decoded"]);
    }
}

#[test]
fn a_sentencepiece_vocabulary_encodes_and_decodes_like_sentencepiece() {
    let (tokenizer, expected) = (gguf(spm_vocab()), &json("expected.json")["spm"]);
    assert_encodes(&tokenizer, plain(), &expected["plain"]);
    let texts = strings(&json("expected.json")["texts"]);
    for (ids, (text, theirs)) in
        id_lists(&expected["plain"]).iter().zip(texts.iter().zip(strings(&expected["decoded"])))
    {
        let ours = tokenizer.decode(ids, SpecialText::Hide).expect("decodable");
        assert_eq!(ours, theirs, "{text:?}");
    }
}

#[test]
fn a_sentencepiece_folder_encodes_like_sentencepiece() {
    let (tokenizer, expected) = (folder("llama"), &json("expected.json")["spm"]);
    let texts = strings(&json("expected.json")["texts"]);
    let cases = id_lists(&expected["plain"]).into_iter().zip(strings(&expected["decoded"]));
    for (text, (ids, decoded)) in texts.iter().zip(cases) {
        // The two libraries differ on an empty text, where only one writes the leading blank.
        if !text.is_empty() {
            assert_eq!(tokenizer.encode(text, plain()).expect("encodable"), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids, SpecialText::Hide).expect("decodable"), decoded);
        }
    }
}

#[test]
fn wordpiece_encodes_like_hugging_face_from_a_folder_and_from_gguf() {
    let expected = &json("expected.json")["wordpiece"];
    for tokenizer in [folder("wordpiece"), gguf(wordpiece_vocab())] {
        assert_encodes(&tokenizer, parsed(), &expected["parsed"]);
        assert_encodes(&tokenizer, plain(), &expected["plain"]);
    }
    assert_decodes(&folder("wordpiece"), &expected["parsed"], &expected["decoded"]);
}

#[test]
fn control_tokens_in_text_are_text_unless_asked_for() {
    for tokenizer in [folder("bpe"), gguf(bpe_vocab("llama-bpe"))] {
        let text = "<|im_start|>x<|im_end|>";
        assert!(
            tokenizer.encode(text, plain()).expect("encodable").iter().all(|&id| !tokenizer.is_control(id))
        );
        let ids = tokenizer.encode(text, parsed()).expect("encodable");
        assert_eq!((ids[0], ids[ids.len() - 1]), (1, 2));
    }
    let tokenizer = gguf(spm_vocab());
    assert!(
        !tokenizer.encode("<s>a</s>", plain()).expect("encodable").iter().any(|&id| tokenizer.is_control(id))
    );
    assert!(tokenizer.encode("<s>a</s>", parsed()).expect("encodable").starts_with(&[1]));
}

#[test]
fn what_the_model_wants_around_a_text_is_added_when_asked_for() {
    let options = EncodeOptions::default();
    let first = |tokenizer: &Tokenizer| tokenizer.encode("hi", options).expect("encodable")[0];
    assert_eq!(first(&folder("bpe")), 0, "the post-processor's token");
    assert_eq!(first(&gguf(spm_vocab())), 1, "SentencePiece adds bos");
    assert_eq!(first(&gguf(bpe_vocab("llama-bpe"))), 0, "so does llama-bpe");
    let ids = gguf(bpe_vocab("smollm")).encode("hi", options).expect("encodable");
    assert_eq!(ids, gguf(bpe_vocab("smollm")).encode("hi", plain()).expect("encodable"), "smollm does not");
    let vocab = GgufVocab { add_bos: Some(true), add_eos: Some(true), ..bpe_vocab("smollm") };
    let ids = gguf(vocab).encode("hi", options).expect("encodable");
    assert_eq!((ids[0], ids[ids.len() - 1]), (0, 2));
    let ids = gguf(wordpiece_vocab()).encode("hi", options).expect("encodable");
    assert_eq!(ids, folder("wordpiece").encode("hi", options).expect("encodable"));
}

#[test]
fn roles_come_from_either_configuration_file() {
    let tokenizer = folder("bpe");
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()), (Some(0), Some(2), None));
    assert_eq!(tokenizer.template_tokens()["eos_token"], "<|im_end|>");
    let tokenizer = folder("llama");
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(1), Some(2)));
    assert_eq!(tokenizer.end_ids(), [2]);
}

#[test]
fn a_gguf_vocabulary_ends_generation_at_every_known_turn_end() {
    let tokenizer = gguf(bpe_vocab("smollm"));
    assert_eq!(tokenizer.end_ids(), [0, 2], "<|endoftext|> and <|im_end|>");
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(2));
    assert_eq!(tokenizer.vocab_size(), 602);
}

#[test]
fn tokens_show_their_bytes() {
    let tokenizer = gguf(spm_vocab());
    let byte = tokenizer.token_id("<0xE5>").expect("a byte token");
    assert_eq!(tokenizer.token_bytes(byte), Some(vec![0xe5]));
    assert_eq!(tokenizer.token_text(byte).as_deref(), Some("\u{fffd}"));
    assert_eq!(tokenizer.token_text(1).as_deref(), Some("<s>"));
    assert_eq!(tokenizer.token_text(100_000), None);
}

#[test]
fn ids_outside_the_vocabulary_decode_to_nothing() {
    for tokenizer in [folder("bpe"), folder("wordpiece"), gguf(spm_vocab())] {
        assert_eq!(tokenizer.decode(&[u32::MAX, 1_000_000], SpecialText::Show).expect("decodable"), "");
    }
}

#[test]
fn detokenising_one_by_one_gives_the_whole_text_and_never_half_a_character() {
    let texts = strings(&json("expected.json")["texts"]);
    for tokenizer in [folder("bpe"), folder("llama"), gguf(bpe_vocab("qwen2")), gguf(spm_vocab())] {
        for text in &texts {
            let ids = tokenizer.encode(text, plain()).expect("encodable");
            let options = DetokenizeOptions { special: SpecialText::Show, position: TextPosition::Start };
            let mut detokenizer = Detokenizer::new(&tokenizer, options);
            let mut shown = String::new();
            for &id in &ids {
                shown += &detokenizer.push(id).expect("decodable");
                let replacements = |text: &str| text.matches('\u{fffd}').count();
                assert!(replacements(&shown) <= replacements(text), "half a character of {text:?}");
            }
            shown += &detokenizer.finish().expect("decodable");
            assert_eq!(shown, tokenizer.decode(&ids, SpecialText::Show).expect("decodable"), "{text:?}");
        }
    }
}

#[test]
fn a_decoder_that_looks_at_neighbours_streams_the_same_text() {
    let tokenizer = folder("wordpiece");
    let ids = tokenizer
        .encode("the compiler reads a program, and writes another one!", plain())
        .expect("encodable");
    let mut detokenizer = Detokenizer::new(&tokenizer, DetokenizeOptions::default());
    let mut shown: String = ids.iter().map(|&id| detokenizer.push(id).expect("decodable")).collect();
    shown += &detokenizer.finish().expect("decodable");
    assert_eq!(shown, tokenizer.decode(&ids, SpecialText::Hide).expect("decodable"));
    assert!(shown.starts_with("the compiler reads"));
}

#[test]
fn generated_text_keeps_the_blank_it_starts_with() {
    let tokenizer = gguf(spm_vocab());
    let the = tokenizer.token_id("▁the").expect("a common word");
    let mut generated = Detokenizer::new(&tokenizer, DetokenizeOptions::default());
    assert_eq!(generated.push(the).expect("decodable"), " the");
    let options = DetokenizeOptions { position: TextPosition::Start, ..DetokenizeOptions::default() };
    let mut whole = Detokenizer::new(&tokenizer, options);
    assert_eq!(whole.push(the).expect("decodable"), "the");
    assert_eq!(whole.push(the).expect("decodable"), " the");
}

#[test]
fn hidden_control_tokens_show_nothing() {
    let tokenizer = folder("bpe");
    let ids = tokenizer.encode("<|im_start|>a<|im_end|>", parsed()).expect("encodable");
    assert_eq!(tokenizer.decode(&ids, SpecialText::Hide).expect("decodable"), "a");
    assert_eq!(tokenizer.decode(&ids, SpecialText::Show).expect("decodable"), "<|im_start|>a<|im_end|>");
}

#[test]
fn phi3_strips_blanks_after_its_markers() {
    let vocab = GgufVocab { model_name: "Phi-3 Mini".to_owned(), ..bpe_vocab("smollm") };
    let (phi, other) = (gguf(vocab), gguf(bpe_vocab("smollm")));
    let encode = |tokenizer: &Tokenizer, text| tokenizer.encode(text, parsed()).expect("encodable");
    assert_eq!(encode(&phi, "<|im_end|> \n a"), encode(&other, "<|im_end|>a"));
    assert_eq!(encode(&phi, "<|endoftext|> a"), encode(&other, "<|endoftext|> a"));
}

fn build_error(vocab: GgufVocab) -> String {
    Tokenizer::from_gguf(vocab).expect_err("a broken vocabulary").to_string()
}

#[test]
fn broken_gguf_vocabularies_are_refused_with_the_reason() {
    let base = || bpe_vocab("smollm");
    for model in ["t5", "rwkv", "plamo2", "hybriddna", "whitespace", ""] {
        let error = build_error(GgufVocab { model: model.into(), ..base() });
        assert!(error.contains(&format!("of kind `{model}`; known kinds are")), "{error}");
    }
    for pre in ["afmoe", "whitespace", "new-one"] {
        let error = build_error(GgufVocab { pre: pre.into(), ..base() });
        assert!(
            error.contains(&format!("pre-tokenizer `{pre}`, which this version does not know")),
            "{error}"
        );
    }
    assert!(build_error(GgufVocab::default()).contains("no tokens"));
    assert!(build_error(GgufVocab { token_types: vec![1; 3], ..base() }).contains("602 tokens but 3"));
    assert!(build_error(GgufVocab { eos_id: Some(602), ..base() }).contains("602 as its eos token"));
    assert!(build_error(GgufVocab { bos_id: None, add_bos: Some(true), ..base() }).contains("bos"));
    for merge in ["", " ", "a", "a ", " a", "é", "a zzz", "<|im_end|> a"] {
        let error = build_error(GgufVocab { merges: vec![merge.to_owned()], ..base() });
        assert!(error.starts_with(&format!("merge 0 of the GGUF vocabulary, `{merge}`")), "{error}");
    }
    let mut twice = base();
    twice.tokens[500] = "a".to_owned();
    twice.merges.clear();
    assert!(build_error(twice).contains("are both `a`"));
    assert!(build_error(GgufVocab { scores: Vec::new(), ..spm_vocab() }).contains("`scores`"));
}

#[test]
fn a_gguf_vocabulary_without_merges_is_refused_unless_its_tokens_need_none() {
    for pre in ["smollm", "llama-bpe"] {
        let error = build_error(GgufVocab { merges: Vec::new(), ..bpe_vocab(pre) });
        assert!(error.starts_with("the GGUF vocabulary has no merges"), "{error}");
    }
    let mut bytes = bpe_vocab("smollm");
    let kept: Vec<usize> =
        (0..bytes.tokens.len()).filter(|&id| bytes.tokens[id].chars().count() == 1).collect();
    assert!(kept.len() > 200, "every byte that can be printed and more");
    bytes.tokens = kept.iter().map(|&id| bytes.tokens[id].clone()).collect();
    bytes = GgufVocab { model: bytes.model, pre: bytes.pre, tokens: bytes.tokens, ..GgufVocab::default() };
    let ids = gguf(bytes).encode("abc", plain()).expect("encodable");
    assert_eq!(ids.len(), 3);
}

#[test]
fn a_word_that_is_a_token_needs_no_merges_where_the_model_says_so() {
    let with_word = |pre| {
        let mut vocab = bpe_vocab(pre);
        vocab.tokens.push("Ġzebra".to_owned());
        vocab.token_types.push(1);
        gguf(vocab)
    };
    assert_eq!(with_word("llama-bpe").encode(" zebra", plain()).expect("encodable"), [602]);
    assert!(with_word("qwen2").encode(" zebra", plain()).expect("encodable").len() > 1);
}

#[test]
fn a_byte_the_vocabulary_lacks_is_left_out() {
    let mut vocab = bpe_vocab("gpt-2");
    vocab.merges.retain(|merge| !merge.contains('z'));
    let z = vocab.tokens.iter().position(|token| token == "z").expect("a letter");
    vocab.tokens[z] = "nothing like it".to_owned();
    let tokenizer = gguf(vocab);
    let encode = |text| tokenizer.encode(text, plain()).expect("encodable");
    assert_eq!(encode("xyz"), encode("xy"));
}

#[test]
fn damaged_tokenizer_files_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |content: &[u8]| {
        std::fs::write(folder.path().join("tokenizer.json"), content).expect("written");
        Tokenizer::from_folder(folder.path()).expect_err("a broken file").to_string()
    };
    let whole = std::fs::read(support::path("bpe/tokenizer.json")).expect("a fixture");
    for end in [0, 1, whole.len() / 3, whole.len() - 2] {
        assert!(open(&whole[..end]).contains("tokenizer.json"));
    }
    // Two tokens of the greatest length, merged: the library writes past its buffer.
    let model = br#"{"version": "1.0", "added_tokens": [],
        "model": {"type": "BPE", "vocab": {"aa": 0, "bb": 1}, "merges": ["aa bb"]}}"#;
    assert!(open(model).contains("probably damaged"));
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"bos_token": 7}"#).expect("written");
    std::fs::write(folder.path().join("tokenizer.json"), &whole).expect("written");
    let error = Tokenizer::from_folder(folder.path()).expect_err("a wrong field");
    assert!(error.to_string().contains("`bos_token`"), "{error}");
}

#[test]
fn a_folder_without_a_tokenizer_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = Tokenizer::from_folder(folder.path()).expect_err("no tokenizer.json");
    assert!(matches!(error, Error::NoTokenizer { .. }));
}

#[test]
fn an_endless_run_of_blanks_is_an_error_where_the_library_would_split_it_wrongly() {
    let text = format!("{}a", " ".repeat(500_000));
    assert!(matches!(folder("bpe").encode(&text, plain()), Err(Error::BlankRunTooLong { .. })));
    let options = EncodeOptions { special_tokens: SpecialTokens::AsText, add_special_tokens: false };
    let ids = gguf(bpe_vocab("gpt-2")).encode(&text, options).expect("encodable");
    assert_eq!(gguf(bpe_vocab("gpt-2")).decode(&ids, SpecialText::Show).expect("decodable"), text);
}

#[test]
fn patterns_of_a_tokenizer_that_would_never_end_come_to_an_end() {
    let whole = std::fs::read(support::path("bpe/tokenizer.json")).expect("a fixture");
    let folder = tempfile::tempdir().expect("a folder");
    let text = "a".repeat(20_000) + "!";
    let nested = "(".repeat(60_000) + &")".repeat(60_000);
    for pattern in
        [r"(a+)+$", r"(?:(a+)+(?!b))+$", r"(?=(a+)+$)a", r"((a|aa)+(?=c))+b", r"a{1,100000}", &nested, "("]
    {
        let mut tokenizer: Value = serde_json::from_slice(&whole).expect("JSON");
        let split = serde_json::json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                                        "invert": false });
        tokenizer["pre_tokenizer"]["pretokenizers"][0] = split;
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
        // It is refused, or no byte of the text is lost.
        let shown = &pattern[..pattern.len().min(40)];
        let Ok(tokenizer) = Tokenizer::from_folder(folder.path()) else { continue };
        if let Ok(ids) = tokenizer.encode(&text, plain()) {
            assert_eq!(tokenizer.decode(&ids, SpecialText::Show).expect("decodable"), text, "{shown}");
        }
        assert!(pattern != "(", "{shown} is no pattern");
    }
}
