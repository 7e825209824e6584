//! `auto`: the engine or the device that measurements say is fastest for a model.

use anyhow::{Result, anyhow, bail};
use mlxcel_engine::step::StepInputs;
use mlxcel_ir::{Activation, Builder, DType, Graph, PagedSpec, shape};

use super::{Rates, decode, prefill};
use crate::engines::{self, EngineArgs, EngineName, Listed};
use crate::say;

/// What an answer is taken to be: a prompt, and tokens behind it.
const PROMPT: usize = 512;
const ANSWER: usize = 128;
const BLOCK: usize = 16;

/// The arguments with `auto` replaced by what is fastest, where they have it.
pub fn resolve(arguments: &EngineArgs) -> Result<EngineArgs> {
    let any_device = arguments.device.as_deref() == Some("auto");
    if arguments.engine != EngineName::Auto && !any_device {
        return Ok(arguments.clone());
    }
    let listed = engines::list(arguments.threads.map(usize::from))?;
    let may = |l: &&Listed| {
        let of_engine =
            arguments.engine == EngineName::Auto || engines::name(l.engine) == Some(arguments.engine);
        let of_device = any_device || arguments.device.as_deref().is_none_or(|d| d == l.device);
        of_engine && of_device && l.engine != "reference"
    };
    let candidates: Vec<&Listed> = listed.iter().filter(may).collect();
    let chosen = match candidates.as_slice() {
        [] => bail!("no engine of this machine fits; see `mlxcel devices`"),
        [only] => only,
        several => fastest(several)?,
    };
    let engine = engines::name(chosen.engine).ok_or_else(|| anyhow!("'{}' is no engine", chosen.engine))?;
    Ok(EngineArgs { engine, device: Some(chosen.device.clone()), ..arguments.clone() })
}

/// Of those that were measured, the one that is foretold to answer first.
fn fastest<'a>(candidates: &[&'a Listed]) -> Result<&'a Listed> {
    let graph = yardstick()?;
    let measured = candidates.iter().filter_map(|l| Some((*l, super::of(l.engine, &l.description)?)));
    let timed = measured.filter_map(|(l, rates)| Some((l, answer_seconds(&graph, &rates)?)));
    let best = timed.min_by(|(_, a), (_, b)| a.total_cmp(b));
    let Some((chosen, seconds)) = best else {
        bail!(
            "nothing is known of the devices yet; run `mlxcel devices --calibrate`, or name an engine and a device"
        )
    };
    say(&format!(
        "note: {} on {} is foretold to be fastest: {ANSWER} tokens of a model of a billion weights in {seconds:.1} s",
        chosen.engine, chosen.device
    ));
    Ok(chosen)
}

/// Seconds for a prompt and an answer.
pub fn answer_seconds(graph: &Graph, rates: &Rates) -> Option<f64> {
    let answer = ANSWER as f64 * decode(graph, rates, PROMPT, BLOCK)?;
    Some(prefill(graph, rates, PROMPT, BLOCK)? + answer)
}

/// A model of about a billion weights in bf16, of the usual proportions.
pub fn yardstick() -> Result<Graph> {
    const HIDDEN: usize = 2048;
    const INNER: usize = 8192;
    const HEADS: usize = 32;
    const KV_HEADS: usize = 8;
    const HEAD: usize = 64;
    let b = Builder::new();
    let inputs = StepInputs::declare(&b);
    let weight = |name: String, n: usize, k: usize| b.weight(&name, DType::BF16, &[n, k]);
    let table = weight("embed".to_string(), 128 << 10, HIDDEN);
    let mut x = table.embedding(inputs.tokens, DType::F32);
    let spec = PagedSpec { scale: 0.125, window: None, softcap: None, sinks: false, value_dim: None };
    for layer in 0..16 {
        let normed = x.rms_norm(1e-5, None);
        let project =
            |name: &str, n: usize| normed.linear(weight(format!("{layer}.{name}"), n, HIDDEN), None);
        let heads = |name: &str, n: usize| project(name, n * HEAD).reshape(shape!["tokens", n, HEAD]);
        let (q, k, v) = (heads("q", HEADS), heads("k", KV_HEADS), heads("v", KV_HEADS));
        let out = b.paged_attention((q, k, Some(v)), inputs.paged(), None, layer, spec.clone());
        let out = out.reshape(shape!["tokens", HEADS * HEAD]);
        x = x + out.linear(weight(format!("{layer}.o"), HIDDEN, HEADS * HEAD), None);
        let normed = x.rms_norm(1e-5, None);
        let project = |name: &str| normed.linear(weight(format!("{layer}.{name}"), INNER, HIDDEN), None);
        let inner = project("gate").activation(Activation::Silu) * project("up");
        x = x + inner.linear(weight(format!("{layer}.down"), HIDDEN, INNER), None);
    }
    let last = x.gather(inputs.logit_rows, 0).rms_norm(1e-5, None);
    b.output("logits", last.linear(table, None));
    Ok(mlxcel_ir::passes::optimize(&b.finish()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::example;

    #[test]
    fn the_yardstick_has_about_a_billion_weights() {
        let graph = yardstick().unwrap();
        let count: usize = graph.weights().map(|(_, n)| n.types[0].elements().as_fixed().unwrap()).sum();
        assert!((1_000_000_000..1_500_000_000).contains(&count), "{count}");
        // 2.5e9 bytes of weights at 10e9 a second, for each of 128 tokens.
        let seconds = answer_seconds(&graph, &example()).unwrap();
        assert!((32.0..60.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn faster_memory_is_foretold_to_answer_sooner() {
        let graph = yardstick().unwrap();
        let seconds = |stream: f64| {
            let rates = Rates { stream_gigabytes_per_s: stream, ..example() };
            answer_seconds(&graph, &rates).unwrap()
        };
        assert!(seconds(20.0) < seconds(10.0) && seconds(20.0) > seconds(10.0) / 2.0);
    }
}
