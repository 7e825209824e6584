//! The arguments of a server, under the names that llama-server has for them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use mlxcel_server::{Config, Defaults, First, Keeping, Limits, Listen, Otlp, TlsFiles};

use crate::cli::{FetchArgs, SamplingArgs, TypeArgs};
use crate::embed::PoolingName;
use crate::engines::EngineArgs;

const EXAMPLES: &str = "\
Examples:
  mlxcel serve
  mlxcel serve -m ./Qwen3-0.6B --port 8000 --api-key secret
  mlxcel serve --models-dir ./models --models-max 2
  curl localhost:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// A model folder, a .gguf file, an alias, or OWNER/NAME on the hub; fetched on first use.
    #[arg(short, long, value_name = "MODEL", default_value = mlxcel_hub::DEFAULT_MODEL, help_heading = "Model")]
    pub model: String,
    /// The name that clients ask for [default: the model's].
    #[arg(short, long, value_name = "NAME", help_heading = "Model")]
    pub alias: Option<String>,
    /// A folder of models, each loaded when it is first asked for.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["model", "alias"], help_heading = "Model")]
    pub models_dir: Option<PathBuf>,
    /// Models in memory at once; the one that was unused longest goes first.
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Model")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub models_max: u16,
    /// Drop a model that nobody asked for so many seconds.
    #[arg(long, value_name = "SECONDS", help_heading = "Model")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub sleep_idle_seconds: Option<u32>,
    #[command(flatten)]
    pub fetching: FetchArgs,
    /// Make embeddings with a model that could also make text.
    #[arg(long, alias = "embedding", help_heading = "Model")]
    pub embeddings: bool,
    /// How the vectors of tokens become one [default: what the model says].
    #[arg(long, value_enum, requires = "embeddings", help_heading = "Model")]
    pub pooling: Option<PoolingName>,
    /// Tokens of a request at most, prompt and answer together [default: the model's context, as memory allows].
    #[arg(short, long, value_name = "N", help_heading = "Batching")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub ctx_size: Option<u32>,
    /// Requests that are computed side by side, or texts where embeddings are made; further ones wait.
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = "Batching")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub parallel: u16,
    /// Requests that wait at most; further ones are told to come back.
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Batching")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub queue: u32,
    /// Tokens of one step at most [default: 512; 2048 where the cuda or the mlx engine answers on a GPU].
    #[arg(short, long, value_name = "N", help_heading = "Batching")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch_size: Option<u32>,
    /// The address to listen to, or the path of a Unix socket.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", help_heading = "Network")]
    pub host: String,
    /// The port; 0 takes any that is free.
    #[arg(long, default_value_t = 8080, help_heading = "Network")]
    pub port: u16,
    /// A key without which nobody is let in; may be given several times, or several with commas.
    #[arg(long, value_name = "KEY", value_delimiter = ',', hide_env_values = true, help_heading = "Network")]
    pub api_key: Vec<String>,
    /// A file of keys, one on each line.
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub api_key_file: Option<PathBuf>,
    /// Let pages of this origin use the server; * for all.
    #[arg(long, value_name = "ORIGIN", help_heading = "Network")]
    pub cors_origin: Vec<String>,
    /// A name of this machine that clients may use beside its addresses and localhost.
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub allowed_host: Vec<String>,
    /// A certificate in PEM form, for https.
    #[arg(long, value_name = "FILE", requires = "ssl_key_file", help_heading = "Network")]
    pub ssl_cert_file: Option<PathBuf>,
    /// Its private key in PEM form.
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file", help_heading = "Network")]
    pub ssl_key_file: Option<PathBuf>,
    /// Seconds that an answer may take [default: as long as it takes].
    #[arg(long, value_name = "SECONDS", help_heading = "Limits")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// Seconds that requests in progress may take after the server was asked to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Limits")]
    pub drain_seconds: u32,
    /// Megabytes of a request's body at most.
    #[arg(long, value_name = "MB", default_value_t = 32, help_heading = "Limits")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub body_megabytes: u32,
    /// Connections at once; further ones are told to come back.
    #[arg(long, value_name = "N", default_value_t = 768, help_heading = "Limits")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub types: TypeArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How the log is written, on standard error.
    #[arg(long, value_enum, default_value_t, help_heading = "Log")]
    pub log_format: LogFormat,
    /// What is written to the log.
    #[arg(long, value_enum, default_value_t, help_heading = "Log")]
    pub log_level: LogLevel,
    /// Send traces of requests to this collector, by OTLP over HTTP [default: what OTEL_EXPORTER_OTLP_ENDPOINT says].
    #[arg(long, value_name = "URL", help_heading = "Log")]
    pub otlp_endpoint: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

impl Serve {
    /// Whether only this machine is listened to.
    pub fn is_local(&self) -> bool {
        let address = self.host.parse::<std::net::IpAddr>();
        self.is_socket() || address.map_or(self.host == "localhost", |ip| ip.is_loopback())
    }

    /// A path rather than an address, as llama-server tells them apart, too.
    fn is_socket(&self) -> bool {
        self.host.contains('/') || self.host.ends_with(".sock")
    }

    /// What the server is told.
    pub fn config(&self) -> Result<Config> {
        let listen = match self.is_socket() {
            true => Listen::Unix(self.host.clone().into()),
            false => Listen::Tcp { host: self.host.clone(), port: self.port },
        };
        let mut api_keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            api_keys.extend(mlxcel_server::read_keys(path)?);
        }
        let tls = self.ssl_cert_file.clone().zip(self.ssl_key_file.clone());
        ensure!(
            tls.is_none() || !self.is_socket(),
            "a certificate is for addresses, and {} is a Unix socket; leave one of them out",
            self.host
        );
        Ok(Config {
            listen,
            tls: tls.map(|(cert, key)| TlsFiles { cert, key }),
            api_keys,
            cors_origins: self.cors_origin.clone(),
            hosts: self.allowed_host.clone(),
            limits: self.limits(),
            sampling: self.defaults(),
            keeping: self.keeping(),
            otlp: self.otlp(),
        })
    }

    /// By the flag, or by the variables that OpenTelemetry has for it; an empty one is as good as none.
    fn otlp(&self) -> Option<Otlp> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = self.otlp_endpoint.clone().or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"))?;
        let service = variable("OTEL_SERVICE_NAME").unwrap_or_else(|| "mlxcel".to_string());
        Some(Otlp { endpoint, service })
    }

    fn limits(&self) -> Limits {
        let seconds = |n: u32| Duration::from_secs(n.into());
        Limits {
            body_bytes: (self.body_megabytes as usize) << 20,
            connections: self.connections as usize,
            request_time: self.timeout.map(seconds),
            drain_time: seconds(self.drain_seconds),
            ..Limits::default()
        }
    }

    fn defaults(&self) -> Defaults {
        let SamplingArgs { temp, top_k, top_p, min_p, seed, repetition_penalty } = self.sampling;
        Defaults { temperature: temp, top_k, top_p, min_p, repetition_penalty, seed }
    }

    fn keeping(&self) -> Keeping {
        let is_one = self.models_dir.is_none();
        Keeping {
            models: if is_one { 1 } else { self.models_max.into() },
            idle_time: self.sleep_idle_seconds.map(|n| Duration::from_secs(n.into())),
            first: if is_one { First::AtOnce } else { First::WhenAsked },
        }
    }
}
