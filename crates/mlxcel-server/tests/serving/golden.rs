//! Tokens over HTTP against what transformers computed: a tiny model on the reference engine, alone, in company, from
//! the cache, and with too little of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use mlxcel_engine::weights::Checkpoint;
use mlxcel_engine::{Engine as _, ReferenceEngine};
use mlxcel_ir::{Bindings, DType};
use mlxcel_sched::{Limits, Runner, Traits};
use mlxcel_server::{Card, Info, LoadError, Parts, Server, Source, Work};
use mlxcel_text::ChatTemplates;
use serde_json::{Value, json};

use crate::client::Client;
use crate::house::{Plan, tokenizer};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/llama/f32")
}

/// Prompts and what transformers goes on with.
fn cases() -> Vec<(Value, Value)> {
    let text = std::fs::read_to_string(folder().join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    golden["cases"].as_array().unwrap().iter().map(|c| (c["prompt"].clone(), c["tokens"].clone())).collect()
}

/// A model whose cache has so many blocks of 16 tokens.
struct Golden {
    blocks: usize,
}

impl Source for Golden {
    fn cards(&self) -> Vec<Card> {
        vec![Card { id: "golden".to_string(), aliases: Vec::new(), created: 0 }]
    }

    fn load(&self, _: &str) -> Result<Parts, LoadError> {
        let blocks = self.blocks;
        let checkpoint = Checkpoint::open(folder()).unwrap();
        let model = mlxcel_models::load(&checkpoint, DType::F32).unwrap();
        let (context, vocab_size) = (blocks.min(16) * 16, model.built.vocab_size);
        let info = Info { context, vocab_size, parallel: 4, queue: 16, ..Info::default() };
        let make = move || {
            let limits = Limits {
                blocks,
                block_size: 16,
                slots: 4,
                batch_tokens_max: 64,
                sequences_max: 4,
                queue_max: 16,
            };
            let traits = Traits {
                max_context: context,
                vocab_size,
                is_recurrent: false,
                keeps_cache: true,
                recompute_past: model.built.recompute_past,
                lengths_matter_past: model.built.lengths_matter_past,
            };
            let dims =
                [("blocks", blocks), ("block", 16), ("slots", 4)].map(|(name, n)| (name.to_string(), n));
            let program = ReferenceEngine.compile(&model.graph, &checkpoint, &Bindings::from(dims));
            Ok(Runner::new(program.unwrap(), limits, traits))
        };
        let templates = ChatTemplates::default();
        let work = Work::Generate(Box::new(make));
        Ok(Parts { info, tokenizer: tokenizer(), templates, end_ids: Default::default(), work })
    }
}

/// Runs `test` with a client of such a model.
fn with_golden(blocks: usize, test: impl FnOnce(&Client)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(Server::bind(Plan::default().config, Arc::new(Golden { blocks }))).unwrap();
    let (address, lifecycle) = (server.address().replace("http://", ""), server.lifecycle());
    let running = runtime.spawn(server.run());
    test(&Client { address, key: None });
    lifecycle.end();
    runtime.block_on(running).unwrap().unwrap();
}

fn go_on(client: &Client, prompt: &Value) -> Value {
    let body = json!({"prompt": prompt, "n_predict": 48, "temperature": 0, "return_tokens": true});
    let answer = client.post("/completion", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["tokens"].clone()
}

#[test]
fn answers_are_those_of_transformers_alone_and_from_the_cache() {
    with_golden(64, |client| {
        for _ in 0..2 {
            for (prompt, expected) in cases() {
                assert_eq!(go_on(client, &prompt), expected);
            }
        }
        let page = client.get("/metrics").text();
        assert!(!page.contains("mlxcel_cached_prompt_tokens_total{model=\"golden\"} 0\n"), "{page}");
    });
}

#[test]
fn answers_are_those_of_transformers_in_company_and_with_too_little_cache() {
    // The long case alone needs 11 of these blocks, and all of them together 20.
    with_golden(12, |client| {
        let asked: Vec<_> = cases()
            .into_iter()
            .chain(cases())
            .map(|(prompt, expected)| {
                let client = client.clone();
                thread::spawn(move || assert_eq!(go_on(&client, &prompt), expected))
            })
            .collect();
        asked.into_iter().for_each(|asked| asked.join().unwrap());
    });
}
