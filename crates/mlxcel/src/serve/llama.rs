//! The flags and variables of llama-server, by which `mlxcel-server` is told. What cannot be done is refused; what is
//! always on here may be asked for.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Args as _, Command, FromArgMatches as _, builder::BoolishValueParser};

use super::{Serve, check_gpu_layers};

/// Variables by the argument that they stand for.
const VARIABLES: &[(&str, &str)] = &[
    ("model", "LLAMA_ARG_MODEL"),
    ("alias", "LLAMA_ARG_ALIAS"),
    ("models_dir", "LLAMA_ARG_MODELS_DIR"),
    ("models_max", "LLAMA_ARG_MODELS_MAX"),
    ("offline", "LLAMA_ARG_OFFLINE"),
    ("embeddings", "LLAMA_ARG_EMBEDDINGS"),
    ("pooling", "LLAMA_ARG_POOLING"),
    ("ctx_size", "LLAMA_ARG_CTX_SIZE"),
    ("parallel", "LLAMA_ARG_N_PARALLEL"),
    ("batch_size", "LLAMA_ARG_BATCH"),
    ("threads", "LLAMA_ARG_THREADS"),
    ("host", "LLAMA_ARG_HOST"),
    ("port", "LLAMA_ARG_PORT"),
    ("api_key", "LLAMA_API_KEY"),
    ("ssl_key_file", "LLAMA_ARG_SSL_KEY_FILE"),
    ("ssl_cert_file", "LLAMA_ARG_SSL_CERT_FILE"),
    ("timeout", "LLAMA_ARG_TIMEOUT"),
    ("n_gpu_layers", "LLAMA_ARG_N_GPU_LAYERS"),
];

/// Short flags of several letters, which the parser does not know, and other spellings.
const SPELLINGS: &[(&str, &str)] = &[
    ("-np", "--parallel"),
    ("-to", "--timeout"),
    ("-ngl", "--n-gpu-layers"),
    ("--gpu-layers", "--n-gpu-layers"),
    ("-cb", "--cont-batching"),
    ("-hf", "--model"),
    ("--hf-repo", "--model"),
    ("-t", "--threads"),
    ("-s", "--seed"),
    ("--repeat-penalty", "--repetition-penalty"),
];

/// What is always on, and may be asked for.
const ALWAYS: &[&str] = &["metrics", "slots", "props", "jinja", "cont-batching", "no-context-shift"];

/// The arguments of this process; ends it where they are wrong.
pub fn parse() -> Serve {
    parse_from(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

fn parse_from(arguments: impl Iterator<Item = OsString>) -> Result<Serve, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(arguments.map(respelled))?;
    let serve = Serve::from_arg_matches(&matches)?;
    if let Some(layers) = matches.get_one::<String>("n_gpu_layers") {
        check_gpu_layers(layers, &serve.engine)
            .map_err(|e| command.error(clap::error::ErrorKind::InvalidValue, e))?;
    }
    Ok(serve)
}

fn command() -> Command {
    let about = "Answers over HTTP, by the interfaces of OpenAI, Anthropic and llama-server";
    let command =
        Serve::augment_args(Command::new("mlxcel-server")).about(about).version(env!("CARGO_PKG_VERSION"));
    let layers = Arg::new("n_gpu_layers").long("n-gpu-layers").value_name("N").help_heading("Engine");
    let mut command = command
        .arg(layers.help("Layers on a GPU: auto, or all with --engine cuda and 0 without, since one engine computes the whole model"));
    for name in ALWAYS {
        command = command.arg(Arg::new(*name).long(*name).action(ArgAction::SetTrue).hide(true));
    }
    for (id, variable) in VARIABLES {
        command = command.mut_arg(id, |arg| match arg.get_action() {
            // A variable has a value where a flag has none.
            ArgAction::SetTrue => arg.env(*variable).value_parser(BoolishValueParser::new()),
            _ => arg.env(*variable),
        });
    }
    command
}

fn respelled(argument: OsString) -> OsString {
    let found = SPELLINGS.iter().find(|(theirs, _)| argument == *theirs);
    found.map_or(argument, |(_, ours)| OsString::from(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Serve, clap::Error> {
        parse_from(["mlxcel-server"].iter().chain(arguments).map(OsString::from))
    }

    #[test]
    fn every_variable_belongs_to_an_argument() {
        command().debug_assert();
    }

    #[test]
    fn the_flags_of_llama_server_are_understood() {
        let line = "-m x.gguf -c 4096 -np 4 -t 2 -b 256 --host 0.0.0.0 --port 9000 --api-key a,b -to 60 -ngl 0 --metrics \
                    --jinja -s 7 --repeat-penalty 1.1 --temp 0.5";
        let serve = parsed(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
        assert_eq!((serve.model.as_str(), serve.ctx_size, serve.parallel), ("x.gguf", Some(4096), 4));
        assert_eq!((serve.engine.threads, serve.batch_size, serve.port), (Some(2), Some(256), 9000));
        assert_eq!((serve.api_key, serve.timeout), (vec!["a".to_string(), "b".to_string()], Some(60)));
        assert_eq!((serve.sampling.seed, serve.sampling.repetition_penalty), (Some(7), 1.1));
    }

    #[test]
    fn layers_are_where_the_engine_is() {
        for arguments in
            [&["-ngl", "99", "--engine", "cuda"][..], &["-ngl", "all", "--engine", "cuda"], &["-ngl", "auto"]]
        {
            assert!(parsed(arguments).is_ok(), "{arguments:?}");
        }
        assert!(parsed(&["-ngl", "0", "--engine", "cuda"]).is_err());
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for arguments in
            [&["-ngl", "99"][..], &["-c", "-1"], &["-c", "1"], &["--port", "70000"], &["--mlock"]]
        {
            assert!(parsed(arguments).is_err(), "{arguments:?}");
        }
    }
}
