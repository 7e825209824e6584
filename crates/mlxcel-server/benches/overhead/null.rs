//! A server with the null engine, whose steps may be made to take as long as those of a real one.

use std::io::Read as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_engine::{Engine as _, EngineError, Feeds, NoWeights, NullEngine, Program, Ticket};
use mlxcel_ir::{Bindings, Builder, HostTensor, shape, step};
use mlxcel_sched::{Limits, Runner, Traits};
use mlxcel_server::{Card, Config, Info, Listen, LoadError, Parts, Server, Source, Work};
use mlxcel_text::{ChatTemplates, GgufVocab, Tokenizer};

/// Bytes, and one token that ends an answer.
const VOCABULARY: usize = 257;
const CONTEXT: usize = 1024;

/// The null engine counts upwards from the last byte of the prompt, so that is the last letter of the question.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";

/// Serves until the input of this process ends.
pub fn serve(step: Duration) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let listen = Listen::Tcp { host: "127.0.0.1".to_string(), port: 0 };
    let config = Config { listen, ..Config::default() };
    let server = runtime.block_on(Server::bind(config, Arc::new(Nulls { step })));
    let server = server.expect("a free port");
    println!("{}", server.address());
    let lifecycle = server.lifecycle();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        lifecycle.end_now();
    });
    match runtime.block_on(server.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => panic!("{error}"),
    }
}

struct Nulls {
    step: Duration,
}

impl Source for Nulls {
    fn cards(&self) -> Vec<Card> {
        vec![Card { id: "null".to_string(), aliases: vec![], created: 0 }]
    }

    fn load(&self, _: &str) -> Result<Parts, LoadError> {
        let step = self.step;
        let info = Info {
            family: "null".to_string(),
            context: CONTEXT,
            vocab_size: VOCABULARY,
            parallel: 256,
            queue: 1024,
            ..Info::default()
        };
        Ok(Parts {
            info,
            tokenizer: tokenizer(),
            templates: ChatTemplates::from_gguf(Some(TEMPLATE.to_string()), []),
            end_ids: [256].into(),
            work: Work::Generate(Box::new(move || Ok(runner(step)))),
        })
    }
}

fn runner(step: Duration) -> Runner {
    let limits = Limits {
        blocks: 256 * CONTEXT / 16,
        block_size: 16,
        slots: 0,
        batch_tokens_max: 4096,
        sequences_max: 256,
        queue_max: 1024,
    };
    let traits = Traits {
        max_context: CONTEXT,
        vocab_size: VOCABULARY,
        is_recurrent: false,
        keeps_cache: true,
        recompute_past: None,
        lengths_matter_past: None,
    };
    Runner::new(Box::new(Paced { program: null(), step, until: Instant::now() }), limits, traits)
}

fn null() -> Box<dyn Program> {
    let b = Builder::new();
    let inputs = step::StepInputs::declare(&b);
    let logits = b.scalar(0f32).broadcast(shape!["rows", VOCABULARY]);
    b.output(step::LOGITS, logits);
    b.output(step::SAMPLED, logits.sample(inputs.sampling));
    let graph = b.finish().expect("a graph that only draws");
    NullEngine.compile(&graph, &NoWeights, &Bindings::new()).expect("the null engine takes any graph")
}

/// A program whose results are there only some time after they were asked for.
struct Paced {
    program: Box<dyn Program>,
    step: Duration,
    until: Instant,
}

impl Program for Paced {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        self.until = Instant::now() + self.step;
        self.program.submit(feeds, outputs)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        std::thread::sleep(self.until.saturating_duration_since(Instant::now()));
        self.program.collect(ticket)
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        self.program.copy_state(axis, pairs)
    }
}

fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_letter(byte).to_string()).collect();
    tokens.push("<|end|>".to_string());
    let mut token_types = vec![1; 256];
    token_types.push(3);
    let vocab = GgufVocab {
        model: "gpt2".to_string(),
        pre: "gpt-2".to_string(),
        tokens,
        token_types,
        eos_id: Some(256),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(vocab).expect("a vocabulary of bytes")
}

/// The letter by which GPT-2's vocabularies write a byte.
fn byte_letter(byte: u8) -> char {
    let is_plain = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_plain(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !is_plain(*b)).count() as u32;
    char::from_u32(256 + rank).expect("a letter")
}
