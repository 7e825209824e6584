//! What holds for any text: places, streams, stop strings and control tokens.

mod support;

use std::sync::LazyLock;

use mlxcel_text::{
    ChatRequest, ChatTemplate, DetokenizeOptions, Detokenizer, EncodeOptions, SpecialText, SpecialTokens,
    StopMatcher, TextPosition, Tokenizer,
};
use proptest::prelude::*;
use serde_json::json;
use support::{bpe_vocab, folder, gguf, parsed, plain, spm_vocab, wordpiece_vocab};

/// Vocabularies that lose nothing.
static EXACT: LazyLock<[Tokenizer; 4]> =
    LazyLock::new(|| [folder("bpe"), folder("llama"), gguf(bpe_vocab("llama-bpe")), gguf(spm_vocab())]);

/// Vocabularies that lower case and leave blanks out.
static LOSSY: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| [folder("wordpiece"), gguf(wordpiece_vocab())]);

/// Texts with what vocabularies stumble over: control tokens and parts of them, blanks, characters of every length.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "\\PC{0,6}",
        "[ \t\n\r▁é字😀<|>]{1,4}",
        Just("<|im_end|>".to_owned()),
        Just("<|im_".to_owned()),
        Just("</s>".to_owned()),
        Just("<0x41>".to_owned()),
        any::<[u8; 5]>().prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
    ];
    proptest::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

/// Pieces of templates, whole and broken.
fn template_part() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "{{", "}}", "{%", "%}", "{#", "#}", "-", " if ", " else ", "endif", " for ", " in ", "endfor",
        " set ", " = ", "==", "endset", "macro ", "endmacro", "call ", "raw", "endraw", "messages", "ns.a",
        "[0]", "(", ")", "[", "]", "{", "}", ".role", "|", "tojson", "'", "\"", "\\", "*", "**", "10", "1.5",
        " is ", "not ", "none", "é", "字", ",", ":", "\n",
    ];
    proptest::sample::select(PIECES).prop_map(str::to_owned)
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let options = DetokenizeOptions { special: SpecialText::Show, position: TextPosition::Start };
    let mut detokenizer = Detokenizer::new(tokenizer, options);
    let mut portions: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).expect("decodable")).collect();
    portions.push(detokenizer.finish().expect("decodable"));
    portions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tokens_lie_end_to_end_and_spell_the_bytes_at_their_place(text in text()) {
        for tokenizer in &*EXACT {
            for options in [plain(), parsed()] {
                let tokens = tokenizer.encode_with_offsets(&text, options).expect("encodable");
                let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                prop_assert_eq!(&ids, &tokenizer.encode(&text, options).expect("encodable"));
                let mut end = 0;
                for token in tokens {
                    prop_assert_eq!(token.start, end);
                    let bytes = tokenizer.token_bytes(token.id).expect("in the vocabulary");
                    let there = &text.as_bytes()[token.start..token.end];
                    // SentencePiece puts a blank before a text that starts anew, and reads `▁` as one.
                    let same = bytes == there || bytes.strip_prefix(b" ") == Some(there) || text.contains('▁');
                    prop_assert!(same, "{:?} at {:?}", bytes, token);
                    end = token.end;
                }
                prop_assert_eq!(end, text.len());
            }
        }
    }

    #[test]
    fn places_of_any_vocabulary_are_in_order_and_inside_the_text(text in text()) {
        let options = EncodeOptions { special_tokens: SpecialTokens::Parse, add_special_tokens: true };
        for tokenizer in EXACT.iter().chain(&*LOSSY) {
            let tokens = tokenizer.encode_with_offsets(&text, options).expect("encodable");
            let mut start = 0;
            for token in tokens {
                prop_assert!(start <= token.start && token.start <= token.end && token.end <= text.len());
                start = token.start;
            }
        }
    }

    #[test]
    fn any_ids_stream_to_the_text_they_decode_to(ids in proptest::collection::vec(0u32..700, 0..40)) {
        for tokenizer in &*EXACT {
            let portions = streamed(tokenizer, &ids);
            let whole = tokenizer.decode(&ids, SpecialText::Show).expect("decodable");
            prop_assert_eq!(portions.concat(), whole);
        }
    }

    #[test]
    fn a_stream_of_a_text_never_shows_part_of_a_character(text in "[é字😀a ]{0,20}") {
        for tokenizer in &*EXACT {
            let ids = tokenizer.encode(&text, plain()).expect("encodable");
            for portion in streamed(tokenizer, &ids) {
                prop_assert!(!portion.contains('\u{fffd}'), "{:?}", portion);
            }
        }
    }

    #[test]
    fn a_stop_string_is_found_across_tokens_and_parts_of_characters(
        before in "[a-z é字]{0,12}",
        stop in "[é字😀!]{1,4}",
        after in "[a-z é字😀]{0,8}",
    ) {
        let text = format!("{before}{stop}{after}");
        let expected = &text[..text.find(&stop).expect("it is there")];
        for tokenizer in &*EXACT {
            let ids = tokenizer.encode(&text, plain()).expect("encodable");
            let mut matcher = StopMatcher::new(std::slice::from_ref(&stop)).expect("not empty");
            let mut shown = String::new();
            let mut stopped = false;
            for portion in streamed(tokenizer, &ids) {
                let progress = matcher.push(&portion);
                shown += &progress.text;
                prop_assert!(expected.starts_with(&shown), "{:?} of {:?}", shown, expected);
                stopped |= progress.stopped_by.is_some();
            }
            prop_assert!(stopped);
            prop_assert_eq!(&shown, expected);
        }
    }

    #[test]
    fn any_template_is_an_error_or_a_text_and_never_a_panic(parts in proptest::collection::vec(template_part(), 0..14)) {
        let source = parts.concat();
        let request = ChatRequest { messages: vec![json!({ "role": "user" })], ..ChatRequest::default() };
        if let Ok(template) = ChatTemplate::new(&source, EXACT[0].template_tokens()) {
            let _ = template.render(&request);
        }
    }

    #[test]
    fn no_text_of_a_user_becomes_a_control_token(text in text(), more in text()) {
        const CHAT: &str = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
        for tokenizer in [&EXACT[0], &EXACT[2]] {
            let ids = tokenizer.encode(&text, plain()).expect("encodable");
            prop_assert!(ids.iter().all(|&id| !tokenizer.is_control(id)));
            let template = ChatTemplate::new(CHAT, tokenizer.template_tokens()).expect("valid");
            let contents = [&text, &more].map(|content| json!({ "role": "user", "content": content }));
            let request = ChatRequest { messages: contents.to_vec(), ..ChatRequest::default() };
            let prompt = template.encode(tokenizer, &request).expect("encodable");
            let controls: Vec<u32> =
                prompt.tokens.iter().copied().filter(|&id| tokenizer.is_control(id)).collect();
            prop_assert_eq!(controls, [1, 2, 1, 2]);
            prop_assert_eq!(prompt.text, format!("<|im_start|>{text}<|im_end|><|im_start|>{more}<|im_end|>"));
        }
    }
}
