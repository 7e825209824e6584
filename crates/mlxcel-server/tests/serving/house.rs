//! A server in this process, with models of the scripted engine behind it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mlxcel_sched::{Limits as SchedLimits, Runner, Traits};
use mlxcel_server::{
    Card, Config, EmbedError, Embedder, First, Info, Lifecycle, Listen, LoadError, Parts, Server,
    ServerError, Source, Work,
};
use mlxcel_text::{ChatTemplates, GgufVocab, Tokenizer};
use tokio::runtime::Runtime;

use crate::client::{Answer, Client};
use crate::engine::{CONTROLS, END, Faults, Script, TEXTS, VOCABULARY};

/// The prompt of a chat ends with the last character that the user wrote, by which the script goes on.
const TEMPLATE: &str = "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}\
{% if m.tool_calls %}<tool_call>{{ m.tool_calls | tojson }}</tool_call>{% endif %}\
{% if m.reasoning_content %}<think></think>{% endif %}{% endfor %}\
{% if tools %}<|start|>tools:{{ tools | tojson }}{% endif %}\
{% if add_generation_prompt %}{{ messages[-1].content[-1] }}{% endif %}";

pub const CONTEXT: usize = 512;

/// How a house is built.
#[derive(Clone)]
pub struct Plan {
    pub config: Config,
    pub limits: SchedLimits,
    pub context: usize,
    /// The names of models; `embedder` makes vectors.
    pub models: Vec<&'static str>,
}

impl Default for Plan {
    fn default() -> Self {
        let listen = Listen::Tcp { host: "127.0.0.1".to_string(), port: 0 };
        let limits = SchedLimits {
            blocks: 256,
            block_size: 16,
            slots: 16,
            batch_tokens_max: 256,
            sequences_max: 16,
            queue_max: 64,
        };
        let mut config = Config { listen, ..Config::default() };
        config.keeping.first = First::WhenAsked;
        config.sampling.temperature = 0.0;
        Plan { config, limits, context: CONTEXT, models: vec!["script"] }
    }
}

/// A running server.
pub struct House {
    pub client: Client,
    pub faults: Arc<Faults>,
    pub rooms: Arc<Rooms>,
    pub lifecycle: Lifecycle,
    pub address: String,
    done: Option<std::sync::mpsc::Receiver<Result<(), ServerError>>>,
    runtime: Option<Runtime>,
}

impl House {
    pub fn new() -> Self {
        Self::build(Plan::default())
    }

    /// A house whose default model is loaded.
    pub fn build(plan: Plan) -> Self {
        let mut plan = plan;
        plan.config.keeping.first = First::AtOnce;
        let house = Self::cold(plan);
        wait(|| house.client.get("/ready").status == 200, || house.client.get("/ready").text());
        house
    }

    pub fn cold(plan: Plan) -> Self {
        Self::cold_with(plan, |_| {})
    }

    pub fn cold_with(plan: Plan, arrange: impl FnOnce(&Rooms)) -> Self {
        let faults = Arc::<Faults>::default();
        let Plan { config, limits, context, models } = plan;
        let rooms = Rooms { limits, context, models, ..Rooms::new(Arc::clone(&faults)) };
        let rooms = Arc::new(rooms);
        arrange(&rooms);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("threads");
        let key = config.api_keys.first().cloned();
        let server = runtime.block_on(Server::bind(config, Arc::clone(&rooms) as Arc<dyn Source>));
        let server = server.expect("a server");
        let (address, lifecycle) = (server.address(), server.lifecycle());
        let (sender, done) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let _ = sender.send(server.run().await);
        });
        let client = Client { address: address.replace("http://", ""), key };
        House { client, faults, rooms, lifecycle, address, done: Some(done), runtime: Some(runtime) }
    }

    /// Waits until the server has ended.
    pub fn wait_for_end(&mut self) -> Result<(), ServerError> {
        let done = self.done.take().expect("waited for once");
        done.recv_timeout(PATIENCE).expect("the server ends")
    }

    /// A number from `/metrics`, by the name and labels of its series.
    pub fn metric(&self, series: &str) -> f64 {
        let page = self.client.get("/metrics").text();
        let line = page.lines().find(|line| line.starts_with(series) && !line.starts_with('#'));
        let line = line.unwrap_or_else(|| panic!("{series} in\n{page}"));
        line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    }

    /// Waits until a metric has a value.
    pub fn wait_for(&self, series: &str, value: f64) {
        wait(|| self.metric(series) == value, || format!("{series} is {} not {value}", self.metric(series)));
    }

    /// Checks that a plain request is answered correctly and nothing is held afterwards.
    pub fn assert_sound(&self) {
        let answer = self.chat("sound A");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.content(), "BCDEFGHIJKLMNOPQRSTUVWXYZ");
        self.wait_for("mlxcel_kv_blocks_used{model=\"script\"}", 0.0);
        self.wait_for("mlxcel_requests_running{model=\"script\"}", 0.0);
        self.wait_for("mlxcel_requests_waiting{model=\"script\"}", 0.0);
    }

    pub fn chat(&self, text: &str) -> Answer {
        let body = serde_json::json!({"messages": [{"role": "user", "content": text}]});
        self.client.post("/v1/chat/completions", &body)
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.faults.open_gate();
        self.lifecycle.end_now();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(PATIENCE);
        }
    }
}

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn wait(is_done: impl Fn() -> bool, complaint: impl Fn() -> String) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < PATIENCE, "{}", complaint());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where the models of a house are.
pub struct Rooms {
    faults: Arc<Faults>,
    limits: SchedLimits,
    context: usize,
    models: Vec<&'static str>,
    pub loads: AtomicUsize,
    /// Held while a load is to take long.
    pub door: Mutex<()>,
    pub refuses_to_load: AtomicBool,
}

impl Source for Rooms {
    fn cards(&self) -> Vec<Card> {
        let card =
            |name: &&str| Card { id: name.to_string(), aliases: vec![format!("{name}-alias")], created: 7 };
        self.models.iter().map(card).collect()
    }

    fn load(&self, id: &str) -> Result<Parts, LoadError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        drop(self.door.lock().unwrap());
        if self.refuses_to_load.load(Ordering::SeqCst) {
            return Err(LoadError { reason: "the file is damaged".to_string() });
        }
        let work = match id {
            "embedder" => Work::Embed(Box::new(Lengths)),
            _ => Work::Generate(self.make_runner()),
        };
        let info = Info {
            family: "script".to_string(),
            engine: "script".to_string(),
            device: "none".to_string(),
            context: self.context,
            vocab_size: VOCABULARY,
            parallel: self.limits.sequences_max,
            queue: self.limits.queue_max,
            path: "nowhere".to_string(),
        };
        let templates = ChatTemplates::from_gguf(Some(TEMPLATE.to_string()), []);
        Ok(Parts { info, tokenizer: tokenizer(), templates, end_ids: [END].into(), work })
    }
}

impl Rooms {
    /// Where no model is asked for.
    pub fn empty() -> Arc<Self> {
        Arc::new(Self::new(Arc::default()))
    }

    fn new(faults: Arc<Faults>) -> Self {
        Rooms {
            faults,
            limits: Plan::default().limits,
            context: CONTEXT,
            models: Vec::new(),
            loads: AtomicUsize::new(0),
            door: Mutex::new(()),
            refuses_to_load: AtomicBool::new(false),
        }
    }

    fn make_runner(&self) -> mlxcel_server::MakeRunner {
        let (faults, limits, max_context) = (Arc::clone(&self.faults), self.limits, self.context);
        Box::new(move || {
            if faults.cannot_start.load(Ordering::SeqCst) {
                return Err(LoadError { reason: "the device is lost".to_string() });
            }
            faults.engines_made.fetch_add(1, Ordering::SeqCst);
            let traits = Traits {
                max_context,
                vocab_size: VOCABULARY,
                is_recurrent: false,
                keeps_cache: true,
                recompute_past: None,
                lengths_matter_past: None,
            };
            Ok(Runner::new(Box::new(Script::new(Arc::clone(&faults))), limits, traits))
        })
    }
}

/// A vector tells how long its text was.
struct Lengths;

impl Embedder for Lengths {
    fn embed(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Ok(sequences.iter().map(|s| vec![s.len() as f32, 3.0, 4.0, 0.0]).collect())
    }
}

/// Every byte is a token by its own number; the texts of the script follow.
pub fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255u8).map(|b| byte_letter(b).to_string()).collect();
    tokens.extend(TEXTS.map(str::to_string));
    let mut token_types = vec![1; 256];
    token_types.extend((0..TEXTS.len()).map(|i| if i < CONTROLS { 3 } else { 4 }));
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
