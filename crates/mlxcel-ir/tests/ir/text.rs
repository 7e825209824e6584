//! The text form: what is printed parses back, what is wrong is named, and no bytes make the parser panic.

use mlxcel_ir::*;
use proptest::prelude::*;

use crate::random::{Purpose, graphs};

/// The message for a text that does not parse.
fn error(text: &str) -> String {
    text.parse::<Graph>().expect_err(text).to_string()
}

#[test]
fn a_graph_reads_as_one_node_a_line() {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 4]);
    let s = b.state("seen", DType::F32, shape!["tokens", 4]);
    b.scope("layers.0", || b.update("seen", s + x * 2.0));
    let last =
        b.scan(&[b.scalar(0.0f32)], &[x], &[], |_, x| vec![x[0] + x[1].reduce(ReduceOp::Sum, &[0]), x[1]]);
    b.output("best \"two\"", x.top_k(2)[1]);
    b.scope("not plain", || b.output("sum", -last[0]));
    let text = r#"%0 = input {"name":"x","dtype":"f32","shape":["tokens",4],"pad":0} : f32[tokens, 4]
%1 = state {"name":"seen","dtype":"f32","shape":["tokens",4]} : f32[tokens, 4]
%2 = constant {"dtype":"f32","shape":[],"hex":"00000040"} : f32[] @ layers.0 // 2
%3 = binary "mul" (%0, %2) : f32[tokens, 4] @ layers.0
%4 = binary "add" (%1, %3) : f32[tokens, 4] @ layers.0
%5 = constant {"dtype":"f32","shape":[],"hex":"00000000"} : f32[] // 0
%6 = scan {"carried":1,"scanned":1} (%5, %0) : (f32[], f32[tokens, 4]) {
  %0 = input {"name":"arg0","dtype":"f32","shape":[],"pad":0} : f32[]
  %1 = input {"name":"arg1","dtype":"f32","shape":[4],"pad":0} : f32[4]
  %2 = reduce {"op":"sum","axes":[0]} (%1) : f32[]
  %3 = binary "add" (%0, %2) : f32[]
  output "out0" = %3
  output "out1" = %1
}
%7 = top_k {"k":2} (%0) : (f32[tokens, 2], i32[tokens, 2])
%8 = unary "neg" (%6.0) : f32[] @ "not plain"
output "best \"two\"" = %7.1
output "sum" = %8
update "seen" = %4
"#;
    let g = b.finish().unwrap();
    assert_eq!(g.to_string(), text);
    assert_eq!(text.parse::<Graph>().unwrap(), g);
}

#[test]
fn space_comments_and_empty_lines_do_not_matter() {
    let text = r#"
  // a graph
  %0=iota{"dtype":"i32","shape":[2],"axis":0}:i32[ 2 ]@a.b// two

output "y"=%0"#;
    let g: Graph = text.parse().unwrap();
    assert_eq!((g.nodes().len(), g.nodes()[0].label.as_str(), g.outputs().len()), (1, "a.b", 1));
    assert_eq!("".parse::<Graph>().unwrap(), Graph::default());
}

#[test]
fn a_recorded_type_is_checked_against_the_inferred_one() {
    let x = r#"%0 = input {"name":"x","dtype":"f32","shape":["tokens",4],"pad":0} : f32[tokens, 4]"#;
    assert_eq!(
        error(&format!("{x}\n%1 = unary \"exp\" (%0) : f32[tokens, 5] @ layers.7")),
        "line 2: unary at node %1 (layers.7): the recorded type f32[tokens, 5] is not the inferred type \
         f32[tokens, 4]"
    );
    assert_eq!(
        error(&format!("{x}\n%1 = top_k {{\"k\":9}} (%0) : f32[tokens, 9]")),
        "line 2: top_k at node %1: top 9 of 4; operands: f32[tokens, 4]"
    );
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let size = r#"%0 = size {"dim":4} : i32[]"#;
    let cases = [
        ("%1 = size {\"dim\":4} : i32[]".to_string(), "line 1: node %1 is out of order, expected %0"),
        (format!("{size}\noutput \"y\" = %3"), "line 2: output 'y' refers to node %3, which is not defined"),
        (
            format!("{size}\noutput \"y\" = %0.1"),
            "line 2: output 'y' refers to node %0, which is not defined",
        ),
        (format!("{size}\nupdate \"s\" = %0"), "line 2: state 's' is updated but not declared"),
        (format!("{size} junk"), "line 1: unexpected 'junk'"),
        (format!("{size}\n}}"), "line 2: '}' closes nothing"),
        ("output = %0".into(), "line 1: '= %0': expected value"),
        ("outputs".into(), "line 1: expected '%' before 'outputs'"),
        ("%x".into(), "line 1: expected the number of a node, not 'x'"),
        ("%99999999999 = size".into(), "line 1: expected the number of a node, not '99999999999 = size'"),
        ("%0 = size {\"dim\":4} : i33[]".into(), "line 1: unknown element type 'i33'"),
        ("%0 = size {\"dim\":4} : i32[a b]".into(), "line 1: 'a b' is not a dimension"),
        ("%0 = if () : () {".into(), "line 1: a region is not closed"),
    ];
    for (text, message) in cases {
        assert_eq!(error(&text), message, "{text}");
    }
    assert!(error("%0 = frobnicate (%1) : f32[]").starts_with("line 1: op 'frobnicate': unknown variant"));
    assert!(error("%0 = size {\"dim\":4,\"x\":1} : i32[]").contains("unknown field `x`"));
    assert!(error("%0 = size {\"dim\":\"4.5\"} : i32[]").contains("'4.5' is not a dimension"));
    assert!(
        error("%0 = constant {\"dtype\":\"f32\",\"shape\":[2],\"hex\":\"00\"} : f32[2]")
            .contains("does not fit")
    );
    assert!(
        error("%0 = weight {\"name\":\"w\",\"dtype\":\"affine4g0_f16\",\"shape\":[2],\"pieces\":[]}")
            .contains("affine4g0")
    );
}

#[test]
fn regions_nest_to_a_limit() {
    let nested = |depth: usize| {
        let open =
            "%0 = constant {\"dtype\":\"bool\",\"shape\":[],\"hex\":\"01\"} : bool[]\n%1 = if (%0) : () {\n";
        let close = "} {\n}\n";
        open.repeat(depth) + &close.repeat(depth)
    };
    let deepest: Graph = nested(REGION_DEPTH_MAX).parse().unwrap();
    assert_eq!(deepest.to_string().parse::<Graph>().unwrap(), deepest);
    assert!(error(&nested(REGION_DEPTH_MAX + 1)).ends_with("regions nest deeper than 64"));
    assert!(error(&nested(100_000)).ends_with("regions nest deeper than 64"));
    assert!(error(&"[".repeat(1 << 20)).starts_with("line 1: "));
    assert!(error(&format!("%0 = size {}", "[".repeat(1 << 20))).contains("recursion limit"));
}

#[test]
fn shapes_that_would_explode_are_refused() {
    let dims: Vec<String> = (0..40).map(|i| format!("\"a{i}+b{i}\"")).collect();
    let iota = format!("%0 = iota {{\"dtype\":\"i32\",\"shape\":[{}],\"axis\":0}} : i32[2]", dims.join(","));
    assert_eq!(error(&iota), "line 1: the shape is too complicated");
    let reshape = format!(
        "%0 = size {{\"dim\":1}} : i32[]\n%1 = reshape {{\"shape\":[{}]}} (%0) : i32[]",
        dims.join(",")
    );
    assert_eq!(error(&reshape), "line 2: the shape is too complicated");
    let long = vec!["a"; 100_000].join("+");
    assert!(error(&format!("%0 = size {{\"dim\":\"{long}\"}} : i32[]")).contains("is not a dimension"));
}

#[test]
fn numbers_at_the_edge_do_not_overflow() {
    let (max, half) = (u64::MAX, i64::MAX);
    let cases = [
        format!(r#"%0 = size {{"dim":{max}}} : i32[]"#),
        format!(r#"%0 = size {{"dim":"{half}*{half}*a+a"}} : i32[]"#),
        format!(r#"%0 = iota {{"dtype":"i32","shape":[{max},{max}],"axis":0}} : i32[{max}, {max}]"#),
        format!(r#"%0 = constant {{"dtype":"f32","shape":[{max},0],"hex":""}} : f32[{half}, 0]"#),
    ];
    for text in cases {
        let g: Graph = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(g.to_string().parse::<Graph>().unwrap(), g);
    }
    let leaves = r#"%0 = input {"name":"x","dtype":"f32","shape":[1,2,4],"pad":0} : f32[1, 2, 4]
%1 = input {"name":"y","dtype":"f32","shape":[],"pad":0} : f32[]"#;
    let window = format!(r#""strides":[1],"padding":[[{max},{max}]]"#);
    for op in [
        format!(r#"pad {{"low":[{max},0,0],"high":[{max},0,0]}} (%0, %1)"#),
        format!(r#"pool {{"kind":"max","window":[{max}],"strides":[1],"padding":[[4,5]]}} (%0)"#),
        format!(r#"conv {{{window},"dilation":[{max}],"groups":1}} (%0, %0)"#),
        format!(r#"conv {{{window},"dilation":[1],"groups":{max}}} (%0, %0)"#),
        format!(r#"scan {{"carried":{max},"scanned":{max}}} (%0)"#),
        format!(r#"while {{"carried":{max}}} (%0)"#),
        format!(r#"slice {{"axis":{max},"start":{max},"end":0,"step":0}} (%0)"#),
        format!(r#"irfft {{"n":{max}}} (%0, %0)"#),
    ] {
        assert!(error(&format!("{leaves}\n%2 = {op} : f32[1]")).starts_with("line 3: "), "{op}");
    }
}

/// One change to a text: what to do, where, and with which byte.
type Mutation = (u8, prop::sample::Index, u8);

fn mutate(text: &str, changes: &[Mutation]) -> String {
    const TOKENS: [&str; 12] =
        ["{", "}", "(", ")", "%", "\"", "-1", "18446744073709551615", "null", "[", "\n", "1e400"];
    let mut bytes = text.as_bytes().to_vec();
    for (what, place, byte) in changes {
        let at = place.index(bytes.len() + 1);
        let end = (at + usize::from(*byte)).min(bytes.len());
        match what % 5 {
            0 if at < bytes.len() => bytes[at] = *byte,
            1 => bytes.drain(at..end).for_each(drop),
            2 => {
                bytes.splice(at..at, TOKENS[usize::from(*byte) % TOKENS.len()].bytes());
            }
            3 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => bytes.insert(at, *byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_printed_graph_parses_back_to_itself(g in graphs(Purpose::Text)) {
        let text = g.to_string();
        let back = text.parse::<Graph>();
        prop_assert!(back.is_ok(), "{:?}\n{}", back.err(), text);
        let back = back.unwrap();
        prop_assert_eq!(&back, &g);
        prop_assert_eq!(back.verify(), Ok(()));
    }

    #[test]
    fn no_change_of_a_text_makes_the_parser_panic(
        g in graphs(Purpose::Text),
        changes in prop::collection::vec(any::<Mutation>(), 1..6),
    ) {
        let text = mutate(&g.to_string(), &changes);
        if let Ok(g) = text.parse::<Graph>() {
            prop_assert_eq!(g.to_string().parse::<Graph>().unwrap(), g);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in ".*") {
        let _ = text.parse::<Graph>();
    }
}
