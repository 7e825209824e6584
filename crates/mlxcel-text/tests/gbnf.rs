//! Grammars in the form of llama.cpp: random ones against a recogniser that goes character by character, and those that
//! llama.cpp publishes, which lie where `MLXCEL_TEST_GRAMMARS` says (`cargo xtask test` fetches them and says so).

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use mlxcel_text::{Error, GrammarLimits, GrammarSource, Grammars, Tokenizer, Vocabulary};
use proptest::prelude::*;

static VOCABULARY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let tokenizer = support::folder("bpe");
    let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &tokenizer.end_ids());
    Arc::new(vocabulary.expect("a small vocabulary"))
});

fn grammars() -> Grammars {
    Grammars::new(Arc::clone(&VOCABULARY), GrammarLimits::default())
}

fn follows(grammars: &Grammars, grammar: &str, text: &str) -> bool {
    let source = GrammarSource::Gbnf(grammar.to_owned());
    let compiled = grammars.get(&source).unwrap_or_else(|error| panic!("{grammar}\n{error}"));
    let mut matcher = compiled.matcher();
    let tokens = VOCABULARY.tokenizer().encode(text, support::plain()).expect("any text has tokens");
    tokens.iter().all(|&token| !matcher.is_complete() && matcher.accept(token).is_ok())
        && matcher.may_end().expect("a position")
}

/// A grammar over `a`, `b` and `c`, with one rule that may refer to itself after a character.
#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Class(String),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    Repeat(Box<Part>, u8),
    /// A character, the other rule, a character.
    Rule(char, char),
}

const REPEATS: [(&str, usize, usize); 5] =
    [("*", 0, 99), ("+", 1, 99), ("?", 0, 1), ("{2}", 2, 2), ("{1,3}", 1, 3)];

impl Part {
    fn write(&self) -> String {
        let all = |parts: &[Part], between: &str| {
            format!("({})", parts.iter().map(Part::write).collect::<Vec<String>>().join(between))
        };
        match self {
            Self::Text(text) => format!("\"{text}\""),
            Self::Class(class) => format!("[{class}]"),
            Self::Sequence(parts) => all(parts, " "),
            Self::Choice(parts) => all(parts, " | "),
            Self::Repeat(part, which) => part.write() + REPEATS[usize::from(*which)].0,
            Self::Rule(before, after) => format!("(\"{before}\" other \"{after}\")"),
        }
    }

    /// Where a text that begins at `at` may end.
    fn ends(&self, text: &[u8], at: usize, other: &Part) -> BTreeSet<usize> {
        match self {
            Self::Text(word) if text[at..].starts_with(word.as_bytes()) => [at + word.len()].into(),
            Self::Class(class) if text.get(at).is_some_and(|byte| class.as_bytes().contains(byte)) => {
                [at + 1].into()
            }
            Self::Text(_) | Self::Class(_) => BTreeSet::new(),
            Self::Choice(parts) => parts.iter().flat_map(|part| part.ends(text, at, other)).collect(),
            Self::Sequence(parts) => parts.iter().fold([at].into(), |ends: BTreeSet<usize>, part| {
                ends.iter().flat_map(|&end| part.ends(text, end, other)).collect()
            }),
            Self::Repeat(part, which) => {
                let (_, min, max) = REPEATS[usize::from(*which)];
                let (mut all, mut ends) = (BTreeSet::new(), BTreeSet::from([at]));
                for count in 0..=max.min(text.len() + 3) {
                    if count >= min {
                        all.extend(&ends);
                    }
                    ends = ends.iter().flat_map(|&end| part.ends(text, end, other)).collect();
                }
                all
            }
            Self::Rule(before, after) => {
                let parts = [Self::Text(before.to_string()), other.clone(), Self::Text(after.to_string())];
                if text.get(at) != Some(&(*before as u8)) {
                    return BTreeSet::new();
                }
                Self::Sequence(parts.to_vec()).ends(text, at, other)
            }
        }
    }
}

fn part() -> impl Strategy<Value = Part> {
    let leaf = prop_oneof![
        "[abc]{1,3}".prop_map(Part::Text),
        "[abc]{1,2}".prop_map(Part::Class),
        ("[abc]", "[abc]").prop_map(|(before, after)| {
            let first = |text: String| text.chars().next().expect("one character");
            Part::Rule(first(before), first(after))
        }),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 1..4).prop_map(Part::Sequence),
            proptest::collection::vec(inner.clone(), 2..4).prop_map(Part::Choice),
            (inner, 0u8..5).prop_map(|(part, which)| Part::Repeat(Box::new(part), which)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn any_grammar_allows_exactly_what_it_describes(root in part(), other in part(), texts in
        proptest::collection::vec("[abc]{0,7}", 12))
    {
        let grammar = format!("root ::= {}\nother ::= {}", root.write(), other.write());
        let grammars = grammars();
        for text in &texts {
            let expected = root.ends(text.as_bytes(), 0, &other).contains(&text.len());
            match grammars.get(&GrammarSource::Gbnf(grammar.clone())) {
                Ok(_) => prop_assert_eq!(follows(&grammars, &grammar, text), expected, "{}\n{}", grammar, text),
                Err(error) => {
                    prop_assert!(!error.to_string().contains("rule_"), "{}: {}", grammar, error);
                    prop_assert!(!expected, "{}: {}", grammar, error);
                }
            }
        }
    }
}

#[test]
fn the_whole_syntax_is_understood() {
    let grammar = "# a comment\nroot ::= greeting (\", \"\n  name)? # more\n  mark{1,2}\ngreeting ::= \"Hi\" |\n  \
                   \"H\\u00e4\" | \"\\x48\\U0001F600\"\nname ::= [^\\n,.!\\]-]+\nmark ::= [!?] | .\n";
    let grammar = grammar.replace("  mark{1,2}", "");
    let grammar = grammar.replace("name)? # more", "name)? mark{1,2} # more");
    let grammars = grammars();
    for text in ["Hi!", "Hä, Bob!?", "H😀, 日本語!", "Hix"] {
        assert!(follows(&grammars, &grammar, text), "{text}");
    }
    for text in ["Hi", "Ho!", "Hi, a,!b", "Hi!!!"] {
        assert!(!follows(&grammars, &grammar, text), "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    let cases: [(&str, &str); 12] = [
        ("", "there is no rule `root`"),
        ("root ::= a", "there is no rule `a`"),
        ("root ::= \"a", "line 1: the text ends in the middle of a literal"),
        ("root ::= [a", "line 1: the text ends in the middle of a literal"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule was defined before"),
        ("root = \"a\"", "line 1: `::=` was expected"),
        ("root ::= (\"a\"", "line 1: `)` was expected"),
        ("root ::= \"a\"{3,2}", "line 1: a repetition is {m}, {m,} or {m,n} with numbers up to 100000"),
        ("root ::= [z-a]", "line 1: a range of characters goes backwards"),
        ("root ::= \"\\q\"", "line 1: an escape is not known"),
        ("root ::= <no such token>", "line 1: the vocabulary has no such token"),
        (&deep, "line 1: brackets nest too deep"),
    ];
    for (grammar, expected) in cases {
        match grammars().get(&GrammarSource::Gbnf(grammar.to_owned())) {
            Err(Error::GrammarRefused { reason, .. }) => assert_eq!(reason, expected),
            other => panic!("{}: {other:?}", &grammar[..grammar.len().min(40)]),
        }
    }
}

#[test]
fn a_token_is_named_by_its_spelling_or_its_id() {
    let end = VOCABULARY.tokenizer().end_ids()[0];
    let special =
        (0..).find(|&id| VOCABULARY.tokenizer().is_control(id) && id != end).expect("a control token");
    let spelling = VOCABULARY.tokenizer().token_text(special).expect("a spelling");
    let letter = VOCABULARY.tokenizer().token_id("a").expect("a letter");
    for grammar in [format!("root ::= {spelling} \"a\""), format!("root ::= <[{special}]> \"a\"")] {
        let compiled = grammars().get(&GrammarSource::Gbnf(grammar)).expect("a grammar");
        let mut matcher = compiled.matcher();
        assert!(matcher.accept(letter).is_err());
        matcher.accept(special).expect("named");
        matcher.accept(letter).expect("described");
        assert!(matcher.is_complete());
    }
}

#[test]
fn a_large_vocabulary_stays_within_the_budgets() {
    let variables = ["MLXCEL_TEST_GRAMMARS", "MLXCEL_TEST_TOKENIZER_QWEN3"];
    let [Some(folder), Some(tokenizer)] = variables.map(|name| std::env::var_os(name).map(PathBuf::from))
    else {
        println!("not run, since {variables:?} are not set: `cargo xtask test` sets them");
        return;
    };
    let tokenizer = Tokenizer::from_folder(&tokenizer).expect("a tokenizer");
    let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &tokenizer.end_ids());
    let grammars = Grammars::new(Arc::new(vocabulary.expect("a vocabulary")), GrammarLimits::default());
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a grammar");
    let json = "{\"name\": \"A long text, with 日本語 and \\n escapes\", \"list\": [1, 2.5, {\"a\": null}]}";
    let cases = [
        (GrammarSource::JsonObject, json),
        (GrammarSource::Gbnf(read("json.gbnf")), json),
        (GrammarSource::Gbnf(read("c.gbnf")), "int f(int a){a = 1;int b = a+f(2);return b;}"),
        (GrammarSource::Gbnf(read("english.gbnf")), "Some words."),
    ];
    for (source, text) in cases {
        let mut matcher = grammars.get(&source).expect("a grammar").matcher();
        for token in tokenizer.encode(text, support::plain()).expect("tokens") {
            assert!(matcher.allows(token).expect("a mask within the budget"), "{text}: {token}");
            matcher.accept(token).expect("allowed");
        }
        assert!(matcher.may_end().expect("a position"), "{text}");
    }
}

#[test]
fn grammars_that_are_published_allow_what_they_are_for() {
    const VARIABLE: &str = "MLXCEL_TEST_GRAMMARS";
    let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        println!("not run, since {VARIABLE} is not set: `cargo xtask test` sets it");
        return;
    };
    let cases: [(&str, &[&str], &[&str]); 8] = [
        (
            "json.gbnf",
            &["{}", "{\"a\":[1,-2.5e+3,{\"b\":\"\\u00e4\\n\"}], \"c\": null}"],
            &["[]", "{\"a\":1", "{a:1}"],
        ),
        ("json_arr.gbnf", &["[\n1,\n{\"a\":true}]"], &["[\n1,\n", "3"]),
        ("arithmetic.gbnf", &["1+2=3\n", "(a-2)*b = 4\n1=1\n"], &["1+=2\n", "(1=2\n"]),
        (
            "c.gbnf",
            &[
                "int f(int a){a = 1;int b = a+f(2);return b;}",
                "int int(){for(int i = 0; i<3; i = i+1){f ();}}",
            ],
            &["int f(", "f(){}", "int f(){x}"],
        ),
        ("chess.gbnf", &["1. e4 e5\n2. Nf3 Nc6\n3. Bb5 O-O\n"], &["1. e4\n", "1. e4 e5\n"]),
        ("english.gbnf", &["It's fine."], &["日本"]),
        ("japanese.gbnf", &["日本語 テスト"], &["English", ""]),
        ("list.gbnf", &["- one\n- two\n"], &["- one", "one\n"]),
    ];
    for (name, good, bad) in cases {
        let grammar = std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let grammars = grammars();
        for text in good {
            assert!(follows(&grammars, &grammar, text), "{name}: {text}");
        }
        for text in bad {
            assert!(!follows(&grammars, &grammar, text), "{name}: {text}");
        }
    }
}
