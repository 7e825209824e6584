//! Sampling against llama.cpp's samplers chained in our order (`tests/fixtures/make_sampling.py`), and against the
//! arithmetic of the graph.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
    mirostat: Run,
}

#[derive(Deserialize)]
struct Case {
    logits: Vec<f32>,
    history: Vec<u32>,
    chain: Chain,
    expected: Vec<(u32, f32)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Chain {
    logit_bias: Vec<(u32, f32)>,
    penalties: Option<Penalties>,
    dry: Option<DryCase>,
    top_n_sigma: f32,
    temperature: Option<f32>,
    top_k: u32,
    typical_p: Option<f32>,
    top_p: Option<f32>,
    min_p: f32,
    xtc: Option<XtcCase>,
}

#[derive(Debug, Deserialize)]
struct Penalties {
    last_n: usize,
    repetition: f32,
    frequency: f32,
    presence: f32,
}

#[derive(Debug, Deserialize)]
struct DryCase {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    breakers: Vec<Vec<u32>>,
}

#[derive(Debug, Deserialize)]
struct XtcCase {
    probability: f32,
    threshold: f32,
}

#[derive(Deserialize)]
struct Run {
    tau: f32,
    eta: f32,
    steps: Vec<RunStep>,
}

#[derive(Deserialize)]
struct RunStep {
    logits: Vec<f32>,
    kept: Vec<u32>,
    chosen: u32,
}

fn fixture() -> Fixture {
    let text = include_str!("../../tests/fixtures/sampling.json");
    serde_json::from_str(text).expect("the fixture is well formed")
}

impl Chain {
    fn sampling(&self) -> Sampling {
        let penalties = self.penalties.as_ref();
        Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k,
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p,
            typical_p: self.typical_p.unwrap_or(1.0),
            top_n_sigma: self.top_n_sigma,
            xtc: self.xtc.as_ref().map(|x| Xtc { probability: x.probability, threshold: x.threshold }),
            dry: self.dry.as_ref().map(|d| Dry {
                multiplier: d.multiplier,
                base: d.base,
                allowed_length: d.allowed_length,
                last_n: Some(d.last_n),
                breakers: d.breakers.clone().into(),
            }),
            repetition_penalty: penalties.map_or(1.0, |p| p.repetition),
            frequency_penalty: penalties.map_or(0.0, |p| p.frequency),
            presence_penalty: penalties.map_or(0.0, |p| p.presence),
            penalty_last_n: penalties.map(|p| p.last_n),
            logit_bias: self.logit_bias.clone().into(),
            ..Sampling::default()
        }
    }
}

fn chooser(sampling: Sampling) -> Chooser {
    Chooser::new(Request { sampling, ..Request::new(vec![0]) })
}

#[test]
fn filters_leave_what_llama_cpp_leaves() {
    for (n, case) in fixture().cases.into_iter().enumerate() {
        let sampling = case.chain.sampling();
        sampling.check(case.logits.len()).expect("the fixture asks for what makes sense");
        let mut logits = case.logits;
        chooser(sampling.clone()).forbid(&mut logits, 0).expect("something is left");
        sampling.reweigh(&mut logits, &case.history, 0);
        let left = sampling.filter(&logits, 0.5);
        let (tokens, expected): (Vec<u32>, Vec<f32>) = case.expected.into_iter().unzip();
        assert_eq!(left.tokens, tokens, "case {n}: {:?}", case.chain);
        let total: f32 = left.weights.iter().sum();
        for (weight, expected) in left.weights.iter().zip(expected) {
            let found = weight / total;
            assert!((found - expected).abs() < 1e-5, "case {n}: {found} for {expected}, {:?}", case.chain);
        }
    }
}

#[test]
fn mirostat_leaves_what_llama_cpp_leaves() {
    let Run { tau, eta, steps } = fixture().mirostat;
    let mut mu = 2.0 * tau;
    for (n, step) in steps.into_iter().enumerate() {
        let mut left = Candidates::new(&step.logits, 1.0, 0);
        left.no_surprise_above(mu);
        let mut kept = left.tokens.clone();
        kept.sort_unstable();
        assert_eq!(kept, step.kept, "step {n}");
        let chosen = left.tokens.iter().position(|t| *t == step.chosen).expect("it was kept");
        mu -= eta * (left.surprise(chosen) - tau);
    }
}

#[test]
fn a_surprising_token_makes_mirostat_stricter() {
    let mirostat = Some(Mirostat { tau: 1.0, eta: 0.5 });
    let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).into();
    let mut drawn = BTreeSet::new();
    for seed in 0..40 {
        let mut chooser = chooser(Sampling { temperature: 1.0, mirostat, seed, ..Sampling::default() });
        // Two bits are allowed at first: the first two tokens, which are then two thirds and one third.
        let token = chooser.choose(&[0], 1, Row::Logits(logits.clone())).expect("a token").token;
        let surprise = [1.5f32, 3.0][token as usize].log2();
        assert!((chooser.mu - (2.0 - 0.5 * (surprise - 1.0))).abs() < 1e-5, "{token}: {}", chooser.mu);
        drawn.insert(token);
    }
    assert_eq!(drawn, [0, 1].into());
}

#[test]
fn the_host_draws_what_the_graph_draws() {
    for seed in 0..400u32 {
        let logits: Vec<f32> = (0..300).map(|t| 9.0 * uniform(seed, t) - 3.0).collect();
        let pick = |salt: u32| uniform(seed, 1000 + salt);
        let sampling = Sampling {
            temperature: 2.0 * pick(0) - 0.2,
            seed,
            top_k: (pick(1) * 60.0) as u32,
            top_p: pick(2).max(0.1),
            min_p: (pick(3) * 0.2 - 0.1).max(0.0),
            ..Sampling::default()
        };
        let tokens: Vec<u32> = (0..1 + seed % 7).collect();
        let expected = sample(&logits, &sampling.in_graph(), tokens.len() as u32);
        assert!(sampling.fits_graph());
        if sampling.temperature > 0.0 {
            let left = sampling.filter(&logits, 0.0);
            let drawn = left.tokens[left.draw(uniform(seed, tokens.len() as u32))];
            assert_eq!(drawn, expected, "by our own filters, seed {seed}");
        }
        let choice = chooser(sampling).choose(&tokens, 1, Row::Logits(logits)).expect("a token");
        assert_eq!(choice.token, expected, "seed {seed}");
    }
}

#[test]
fn xtc_strikes_as_often_as_it_is_asked_to() {
    let xtc = Some(Xtc { probability: 0.3, threshold: 0.2 });
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln() + 0.001];
    let sampling = Sampling { temperature: 1.0, xtc, ..Sampling::default() };
    let struck =
        (0..4000).filter(|step| sampling.filter(&logits, uniform(7 ^ XTC_SEED, *step)).tokens == [2]);
    let share = struck.count() as f32 / 4000.0;
    assert!((share - 0.3).abs() < 0.03, "{share}");
}

#[test]
fn logits_at_the_edge_of_f32_still_give_a_token() {
    let extreme = [f32::MAX, f32::MIN, f32::NEG_INFINITY, 1e-40, 0.0];
    for n in 0..500u32 {
        let pick = |salt: u32, of: usize| (uniform(n, salt) * of as f32) as usize;
        let logits: Vec<f32> = (0..20).map(|t| extreme[pick(t, 5)]).collect();
        let sampling = Sampling {
            temperature: [1e-38, 1.0, f32::MAX][pick(30, 3)],
            repetition_penalty: [1e-3, 1.0, 1e3][pick(31, 3)],
            frequency_penalty: [-1e3, 0.0, 1e3][pick(32, 3)],
            typical_p: [0.0, 0.5, 1.0][pick(33, 3)],
            top_p: [0.0, 1.0][pick(34, 2)],
            top_n_sigma: [0.0, 1.0, f32::MAX][pick(35, 3)],
            xtc: [None, Some(Xtc { probability: 1.0, threshold: 0.0 })][pick(36, 2)],
            mirostat: [None, Some(Mirostat { tau: 0.0, eta: f32::MAX })][pick(37, 2)],
            logit_bias: [(3, f32::MAX), (3, f32::MAX), (4, f32::MIN)].into(),
            ..Sampling::default()
        };
        sampling.check(20).expect("all of it is allowed");
        let mut chooser = chooser(sampling);
        for _ in 0..3 {
            let choice = chooser.choose(&[1, 2, 3, 3, 4], 1, Row::Logits(logits.clone()));
            assert!(choice.is_ok_and(|choice| choice.token < 20));
        }
    }
}

#[test]
fn values_without_a_meaning_are_refused_by_name() {
    let refused = |sampling: Sampling| match sampling.check(10) {
        Err(crate::Refusal::Sampling { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let plain = Sampling::default;
    assert_eq!(refused(Sampling { temperature: f32::NAN, ..plain() }), "temperature");
    assert_eq!(refused(Sampling { temperature: -1.0, ..plain() }), "temperature");
    assert_eq!(refused(Sampling { temperature: f32::INFINITY, ..plain() }), "temperature");
    assert_eq!(refused(Sampling { top_p: 1.5, ..plain() }), "top_p");
    assert_eq!(refused(Sampling { repetition_penalty: 0.0, ..plain() }), "repetition_penalty");
    assert_eq!(refused(Sampling { presence_penalty: f32::INFINITY, ..plain() }), "presence_penalty");
    let bias = Sampling { logit_bias: [(3, f32::NAN)].into(), ..plain() };
    assert_eq!(refused(bias), "logit_bias");
    let unknown = Sampling { logit_bias: [(10, 1.0)].into(), ..plain() };
    assert_eq!(unknown.check(10), Err(crate::Refusal::UnknownToken { token: 10, vocab_size: 10 }));
    assert_eq!(Sampling { logit_bias: [(3, f32::NEG_INFINITY)].into(), ..plain() }.check(10), Ok(()));
}
