//! Grammars: what they allow and refuse, and that hostile ones are refused instead of followed.

mod support;

use std::sync::{Arc, LazyLock};

use mlxcel_text::{Error, GrammarLimits, GrammarSource, Grammars, Matcher, Vocabulary};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Ids beyond the tokenizer's, as models that pad their output layer have them.
const PADDING: usize = 40;

fn vocabulary() -> Arc<Vocabulary> {
    let tokenizer = support::folder("bpe");
    let size = tokenizer.vocab_size() + PADDING;
    Arc::new(Vocabulary::new(&tokenizer, size, &tokenizer.end_ids()).expect("a small vocabulary"))
}

fn grammars() -> Grammars {
    Grammars::new(vocabulary(), GrammarLimits::default())
}

fn matcher(grammars: &Grammars, source: GrammarSource) -> Matcher {
    grammars.get(&source).unwrap_or_else(|error| panic!("{source:?}: {error}")).matcher()
}

fn tokens(grammars: &Grammars, text: &str) -> Vec<u32> {
    grammars.vocabulary().tokenizer().encode(text, support::plain()).expect("any text has tokens")
}

/// Whether the grammar allows the whole text and nothing is missing. Every token is looked up in the mask first: what
/// the mask says and what is accepted must agree.
fn follows(grammars: &Grammars, source: &GrammarSource, text: &str) -> bool {
    let mut matcher = matcher(grammars, source.clone());
    for token in tokens(grammars, text) {
        if matcher.is_complete() {
            return false;
        }
        let allowed = matcher.allows(token).expect("a mask");
        assert_eq!(matcher.accept(token).is_ok(), allowed, "mask and matcher on token {token} of {text:?}");
        if !allowed {
            return false;
        }
    }
    matcher.may_end().expect("a position")
}

fn schema(value: Value) -> GrammarSource {
    GrammarSource::JsonSchema(value)
}

fn regex(text: &str) -> GrammarSource {
    GrammarSource::Regex(text.to_owned())
}

fn lark(text: &str) -> GrammarSource {
    GrammarSource::Lark(text.to_owned())
}

fn check(source: &GrammarSource, good: &[&str], bad: &[&str]) {
    let grammars = grammars();
    for text in good {
        assert!(follows(&grammars, source, text), "{text:?} follows {source:?}");
    }
    for text in bad {
        assert!(!follows(&grammars, source, text), "{text:?} does not follow {source:?}");
    }
}

#[test]
fn a_schema_allows_what_it_describes_and_nothing_else() {
    let person = schema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 2},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "role": {"enum": ["admin", "user"]},
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    }));
    check(
        &person,
        &[
            r#"{"name":"Jürgen","age":42}"#,
            "{\"name\": \"Ann\",\n  \"age\": 7, \"role\": \"user\"}",
            r#"{"name":"a\nb","age":150}"#,
        ],
        &[
            r#"{"name":"J","age":42}"#,
            r#"{"name":"Ann","age":151}"#,
            r#"{"name":"Ann"}"#,
            r#"{"name":"Ann","age":1,"x":0}"#,
            r#"{"name":"Ann","age":1,"role":"root"}"#,
            r#"{"name":"Ann","age":1"#,
        ],
    );
}

#[test]
fn a_schema_may_refer_to_itself() {
    let tree = schema(json!({
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}},
            "additionalProperties": false,
        }},
    }));
    check(&tree, &["{}", r#"{"left":{"right":{}}}"#], &[r#"{"left":1}"#, "[]"]);
}

#[test]
fn an_object_may_have_many_fields() {
    let fields: serde_json::Map<String, Value> =
        (0..900).map(|i| (format!("field{i}"), json!({"type": "integer"}))).collect();
    let many = schema(json!({"type": "object", "properties": fields, "additionalProperties": false}));
    check(&many, &["{}", r#"{"field7":1,"field899":2}"#], &[r#"{"field900":1}"#, r#"{"field7":"x"}"#]);
}

#[test]
fn any_object_is_an_object_and_no_other_json() {
    check(&GrammarSource::JsonObject, &["{}", r#"{"a":[1,{"b":null}]}"#], &["[]", "1", "\"a\"", "{a:1}"]);
}

#[test]
fn an_expression_matches_the_whole_text() {
    check(&regex(r"[a-c]+(-\d{2})?"), &["abc", "c-07"], &["abd", "c-7", "", "abc "]);
    check(&regex(r#"a/b\/"c""#), &["a/b/\"c\""], &["a"]);
    check(&regex("(a+)+"), &["aaaa"], &["aaab"]);
}

#[test]
fn a_lark_grammar_may_nest() {
    let sums = lark("start: term (\"+\" term)*\nterm: /[0-9]+/ | \"(\" start \")\"\n");
    check(&sums, &["1", "1+(2+33)+4"], &["1+", "(1", "1)"]);
}

#[test]
fn the_end_is_allowed_exactly_where_the_text_is_complete() {
    let grammars = grammars();
    let end = grammars.vocabulary().tokenizer().end_ids()[0];
    let mut matcher = matcher(&grammars, regex("a(bc)?"));
    assert!(!matcher.allows(end).expect("a mask"));
    matcher.accept(tokens(&grammars, "a")[0]).expect("allowed");
    assert!(matcher.allows(end).expect("a mask") && matcher.may_end().expect("a position"));
    assert!(!matcher.is_complete(), "more may follow");
    matcher.accept(end).expect("allowed");
    assert!(matcher.is_complete());
    assert!(matches!(matcher.accept(end), Err(Error::TokenRefused { .. })));
}

#[test]
fn a_text_that_cannot_go_on_is_complete_without_an_end() {
    let grammars = grammars();
    let mut matcher = matcher(&grammars, regex("abc"));
    for token in tokens(&grammars, "abc") {
        assert!(!matcher.is_complete());
        matcher.accept(token).expect("allowed");
    }
    assert!(matcher.is_complete());
    let end = grammars.vocabulary().tokenizer().end_ids();
    let size = grammars.vocabulary().size() as u32;
    let allowed: Vec<u32> = (0..size).filter(|&id| matcher.allows(id).expect("a mask")).collect();
    assert_eq!(allowed, end, "only an end may follow");
    matcher.accept(end[0]).expect("as the mask says");
    assert!(matches!(matcher.accept(end[0]), Err(Error::TokenRefused { .. })), "but once");
    matcher.roll_back(2).expect("more were taken");
    assert!(!matcher.is_complete());
}

#[test]
fn control_tokens_and_ids_without_a_token_are_never_allowed_as_text() {
    let grammars = grammars();
    let tokenizer = grammars.vocabulary().tokenizer().clone();
    let mut matcher = matcher(&grammars, regex(r"(.|\n)*"));
    let ends = tokenizer.end_ids();
    let words = matcher.mask().expect("a mask").len();
    assert_eq!(words, grammars.vocabulary().size().div_ceil(32));
    for id in 0..grammars.vocabulary().size() as u32 {
        let is_text = tokenizer.token_bytes(id).is_some() && !tokenizer.is_control(id);
        let allowed = matcher.allows(id).expect("a mask");
        assert!(is_text || ends.contains(&id) || !allowed, "token {id}");
    }
    assert!(matches!(
        matcher.accept(u32::MAX),
        Err(Error::TokenRefused { .. } | Error::GrammarFailed { .. })
    ));
}

#[test]
fn a_refused_token_leaves_the_position_and_rolling_back_restores_it() {
    let grammars = grammars();
    let source = schema(json!({"type": "array", "items": {"type": "integer"}}));
    let mut matcher = matcher(&grammars, source);
    let bracket = tokens(&grammars, "[")[0];
    matcher.accept(bracket).expect("allowed");
    let after_bracket = matcher.mask().expect("a mask").to_vec();
    let letter = tokens(&grammars, "x")[0];
    assert!(matches!(matcher.accept(letter), Err(Error::TokenRefused { token }) if token == letter));
    assert_eq!(matcher.mask().expect("a mask"), after_bracket);
    let more = tokens(&grammars, "1,2]");
    let mut forked = matcher.fork();
    more.iter().for_each(|&token| matcher.accept(token).expect("allowed"));
    matcher.roll_back(more.len()).expect("as many were taken");
    assert_eq!(matcher.mask().expect("a mask"), after_bracket);
    more.iter().for_each(|&token| forked.accept(token).expect("allowed"));
    assert!(forked.is_complete() && !matcher.is_complete(), "a fork goes its own way");
}

#[test]
fn blanks_in_json_come_to_an_end() {
    let grammars = grammars();
    let source = schema(json!({"type": "array"}));
    let text = |blanks: usize| format!("[{}1]", " ".repeat(blanks));
    assert!(follows(&grammars, &source, &text(40)));
    assert!(!follows(&grammars, &source, &text(4000)));
}

#[test]
fn the_same_source_is_compiled_once_and_few_are_kept() {
    let limits = GrammarLimits { kept_max: 2, ..GrammarLimits::default() };
    let grammars = Grammars::new(vocabulary(), limits);
    let get = |text: &str| grammars.get(&regex(text)).expect("a small expression");
    let first = get("a");
    assert!(Arc::ptr_eq(&first, &get("a")));
    get("b");
    get("a");
    get("c");
    assert!(Arc::ptr_eq(&first, &get("a")), "it was used since");
    assert_eq!(Arc::strong_count(&get("b")), 2);
    assert!(!Arc::ptr_eq(&first, &get("c")));
    get("b");
    assert!(!Arc::ptr_eq(&first, &get("a")), "it had to go");
}

#[test]
fn expressions_that_defeat_backtracking_are_followed_until_their_budget_is_spent() {
    let grammars = grammars();
    for (text, is_followed) in
        [("a{1,100000}", true), ("(a+)+", true), ("(a*)*b", true), ("(a{1,1000}){1,1000}", false)]
    {
        let mut matcher = matcher(&grammars, regex(text));
        let outcome = tokens(&grammars, &"a".repeat(300)).into_iter().try_for_each(|token| {
            assert!(matcher.allows(token)?, "{text}");
            matcher.accept(token)
        });
        match outcome {
            Ok(()) => assert!(is_followed && !matcher.allows(tokens(&grammars, "!")[0]).expect("a mask")),
            Err(error) => {
                assert!(!is_followed && matches!(error, Error::GrammarFailed { .. }), "{text}: {error}")
            }
        }
    }
}

fn refusal(source: &GrammarSource) -> Error {
    match grammars().get(source) {
        Ok(_) => panic!("{} was accepted", source.kind()),
        Err(error) => error,
    }
}

#[test]
fn expressions_that_ask_for_too_much_are_refused() {
    let nested = "(".repeat(60_000) + "a" + &")".repeat(60_000);
    for text in ["(?=a)b", "(a", "a\\", r"\b", "(a)\\1", &nested] {
        let error = refusal(&regex(text));
        let expected = matches!(error, Error::GrammarRefused { .. } | Error::GrammarTooLarge { .. });
        assert!(expected, "{}: {error:?}", &text[..text.len().min(30)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_text_is_a_grammar_or_refused(
        text in "[a-cA-C0-9\"/:|()\\[\\]{}*+?<>^$.,\\\\ \n~&%#=é-]{0,40}",
        start in prop_oneof![Just(""), Just("start: "), Just("root ::= "), Just("start: \"a\" "), Just("(?i)")],
    ) {
        let text = format!("{start}{text}");
        for source in [regex(&text), lark(&text), GrammarSource::Gbnf(text.clone())] {
            if let Err(error) = GRAMMARS.get(&source) {
                let is_refused = matches!(error, Error::GrammarRefused { .. } | Error::GrammarTooLarge { .. });
                prop_assert!(is_refused, "{source:?}: {error:?}");
            }
        }
    }
}

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(grammars);

#[test]
fn schemas_that_cannot_be_enforced_are_refused() {
    let hostile = [
        json!(false),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"$ref": "http://example.com/schema"}),
        json!({"$ref": "file:///etc/passwd"}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"type": "array", "uniqueItems": true}),
        json!({"type": "object", "not": {"required": ["a"]}}),
        json!({"type": "nonsense"}),
        json!(7),
        json!({"enum": []}),
        json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    ];
    for value in hostile {
        let error = refusal(&schema(value.clone()));
        assert!(matches!(error, Error::GrammarRefused { .. }), "{value}: {error:?}");
    }
}

#[test]
fn schemas_that_are_too_large_are_refused_before_any_work() {
    let deep = (0..1000).fold(json!({}), |inner, _| json!({"items": inner}));
    let wide = json!({"enum": (0..1_000_000).collect::<Vec<u32>>()});
    let long = json!({"const": "x".repeat(1 << 20)});
    let fields: serde_json::Map<String, Value> = (0..5000).map(|i| (format!("f{i}"), json!({}))).collect();
    let many = json!({"properties": fields});
    let steps = json!({"items": {"type": "integer", "multipleOf": 999_999_937}});
    let fine = json!({"type": "number", "multipleOf": 0.000_000_1});
    let expected = [
        (&deep, "levels"),
        (&wide, "values"),
        (&long, "bytes"),
        (&many, "fields in one object"),
        (&steps, "steps in `multipleOf`"),
    ];
    assert!(grammars().get(&schema(fine)).is_ok(), "few remainders, however small the number");
    let within = refusal(&lark(&format!("start: \"a\" %json {steps} \"b\"")));
    assert!(matches!(within, Error::GrammarTooLarge { measure: "steps in `multipleOf`", .. }), "{within:?}");
    for (value, expected) in expected {
        let error = refusal(&schema(value.clone()));
        assert!(matches!(error, Error::GrammarTooLarge { measure, .. } if measure == expected), "{error:?}");
    }
}

#[test]
fn sources_that_lead_deep_without_nesting_are_followed_or_refused() {
    let chain = |link: &dyn Fn(usize) -> String| (0..10_000).map(link).collect::<Vec<String>>().join("\n");
    let rules = format!("start: r0\n{}\nr10000: \"a\"", chain(&|i| format!("r{i}: r{}", i + 1)));
    let terminals = format!("start: T0\n{}\nT10000: \"a\"", chain(&|i| format!("T{i}: T{}", i + 1)));
    let brackets = format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000));
    let definitions: serde_json::Map<String, Value> =
        (0..5000).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}))).collect();
    let references = json!({"$defs": definitions, "$ref": "#/$defs/d0"});
    let options: Vec<Value> = (0..9000).map(|i| json!({"const": i})).collect();
    let pairs: Vec<Value> =
        (0..40).map(|i| json!({"anyOf": [{"minLength": i}, {"maxLength": 99 - i}]})).collect();
    let sources = [
        lark(&rules),
        lark(&terminals),
        lark(&brackets),
        schema(references),
        schema(json!({"anyOf": options})),
    ];
    for source in sources.into_iter().chain([schema(json!({"allOf": pairs}))]) {
        if let Err(error) = grammars().get(&source) {
            let refused = matches!(error, Error::GrammarRefused { .. } | Error::GrammarTooLarge { .. });
            assert!(refused, "{}: {error:?}", source.kind());
        }
    }
}
