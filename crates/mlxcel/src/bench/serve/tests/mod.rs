//! The load generator against a small server that behaves and misbehaves as told. No test looks at how long anything
//! took.

mod server;

use std::net::TcpListener;

use clap::Parser;
use serde_json::Value;

use super::summary::Summary;
use super::{Format, Serve, finish, measure};
use server::Behaviour::{self, *};
use server::Server;

const SHORT: Behaviour = Answers { pieces: 3 };

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    serve: Serve,
}

fn options(url: &str, arguments: &str) -> Serve {
    let words = ["serve", "--url", url].into_iter().chain(arguments.split_whitespace());
    Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).serve
}

/// What is printed.
fn printed(options: &Serve) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (shape, runs) = runtime.block_on(measure(options))?;
    finish(options, &shape, runs)
}

fn summaries(server: &Server, arguments: &str) -> Vec<Summary> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_, runs) = runtime.block_on(measure(&options(&server.url, arguments))).unwrap();
    runs.into_iter().map(|(_, summary)| summary).collect()
}

fn summary(server: &Server, arguments: &str) -> Summary {
    summaries(server, arguments).pop().expect("one load")
}

fn refusal(url: &str, arguments: &str) -> String {
    printed(&options(url, arguments)).unwrap_err().to_string()
}

/// The trial is answered; all others as told.
fn after_trial(behaviour: Behaviour) -> Server {
    Server::new(move |number| if number == 0 { SHORT } else { behaviour })
}

#[test]
fn clients_send_as_many_requests_as_asked_and_one_at_a_time_each() {
    let server = Server::new(|_| SHORT);
    let run = summary(&server, "--clients 4 --requests 30 --input-words 5 --shared-prefix 2 --max-tokens 9");
    assert_eq!((run.requests, run.completed, run.cancelled, run.failed), (30, 30, 0, 0));
    assert_eq!((run.clients, run.rate), (Some(4), None));
    // The server's count, two for each piece, and not the pieces.
    assert_eq!((run.output_tokens, run.prompt_tokens, run.cached_tokens), (30 * 6, 30 * 7, 30 * 3));
    assert!(run.samples.iter().all(|line| line.first_token_ms.is_some_and(|ms| ms <= line.total_ms)));
    let seen = server.seen();
    assert_eq!(seen.bodies.len(), 31, "one of them is the trial");
    assert!(seen.most <= 4, "{}", seen.most);
    assert!(seen.connections <= 4, "connections are used again: {}", seen.connections);
    assert!(seen.bodies[1..].iter().all(|body| body["max_tokens"] == 9 && body["model"] == "tiny"));
    let prompts: std::collections::BTreeSet<_> =
        seen.bodies[1..].iter().map(|body| body["messages"][0]["content"].as_str().unwrap()).collect();
    assert_eq!(prompts.len(), 30, "no prompt is sent twice");
}

#[test]
fn requests_arrive_at_a_rate_whether_or_not_others_were_answered() {
    let server = after_trial(WaitsForCompany { requests: 12 });
    let run = summary(&server, "--rate 500 --requests 12");
    assert_eq!((run.requests, run.completed, run.rate), (12, 12, Some(500.0)));
    assert_eq!(server.seen().most, 12, "a closed loop would have waited");
}

#[test]
fn a_duration_ends_a_run_and_what_is_under_way_is_waited_for() {
    for load in ["--clients 2", "--rate 100"] {
        let run = summary(&Server::new(|_| SHORT), &format!("{load} --duration 0.3"));
        assert!(run.requests > 0, "{load}");
        assert_eq!(run.completed, run.requests, "{load}");
    }
}

#[test]
fn several_loads_are_tried_in_turn_with_prompts_of_their_own() {
    let server = Server::new(|_| SHORT);
    let runs = summaries(&server, "--rates 200,400 --requests 5 --shared-prefix 4 --input-words 4");
    assert_eq!(runs.iter().map(|run| run.load.as_str()).collect::<Vec<_>>(), ["200 req/s", "400 req/s"]);
    let bodies = server.seen().bodies;
    let beginning = |body: &Value| {
        let text = body["messages"][0]["content"].as_str().unwrap();
        text.split(' ').take(4).collect::<Vec<_>>().join(" ")
    };
    let (first, second) = bodies[1..].split_at(5);
    assert!(first.iter().all(|body| beginning(body) == beginning(&first[0])));
    assert!(second.iter().all(|body| beginning(body) == beginning(&second[0])));
    assert_ne!(beginning(&first[0]), beginning(&second[0]));
}

#[test]
fn clients_that_leave_close_their_connections() {
    // A request gets nothing before all earlier clients are gone.
    let server = Server::new(|number| match number {
        0 => SHORT,
        number => WaitsForLeaving { departures: number - 1, pieces: 5 },
    });
    let run = summary(&server, "--clients 1 --requests 9 --cancel 1 --max-tokens 10 --timeout 20");
    assert_eq!((run.requests, run.completed, run.cancelled, run.failed), (9, 0, 9, 0));
    assert!(run.output_tokens >= 9 && run.total_ms.is_none(), "a cancelled answer has tokens and no time");
    assert_eq!(server.wait_until(|seen| seen.departures == 9).departures, 9);
}

#[test]
fn every_way_to_fail_is_counted_by_its_kind() {
    let ways = [
        (CutsAfter { pieces: 2 }, "cut stream", "the connection was cut"),
        (CutsAfter { pieces: 0 }, "cut stream", "the connection was cut"),
        (EndsEarly { pieces: 2 }, "cut stream", "in the middle of an answer"),
        (ForgetsDone, "no [DONE]", "without [DONE]"),
        (ReportsAnError, "error in the stream", "out of blocks"),
        (SaysNonsense, "malformed answer", "nonsense"),
        (Refuses { status: 429, message: "too many" }, "HTTP 429", "too many"),
        (SaysNothing, "timeout", "--timeout"),
    ];
    for (behaviour, kind, says) in ways {
        // One that works, so that a connection is at hand.
        let server = Server::new(move |number| if number < 2 { SHORT } else { behaviour });
        let run = summary(&server, "--clients 1 --requests 3 --timeout 2");
        assert_eq!(
            (run.completed, run.failed, run.errors.len()),
            (1, 2, 1),
            "{behaviour:?} {:?}",
            run.errors
        );
        let error = &run.errors[0];
        assert_eq!((error.kind.as_str(), error.count), (kind, 2), "{behaviour:?}");
        assert!(error.first.contains(says), "{behaviour:?}: {}", error.first);
        assert_eq!(run.samples[2].outcome, kind);
    }
}

#[test]
fn a_connection_that_the_server_ends_is_not_used_again() {
    let server = Server::new(|_| AnswersAndCloses { pieces: 1 });
    let run = summary(&server, "--clients 2 --requests 10");
    assert_eq!((run.completed, run.failed), (10, 0));
    assert!(server.seen().connections >= 11);
}

#[test]
fn whole_answers_have_no_first_token() {
    let run = summary(&Server::new(|_| SHORT), "--no-stream --requests 4 --clients 2");
    assert_eq!((run.completed, run.output_tokens), (4, 12));
    assert!(run.first_token_ms.is_none() && run.between_tokens_ms.is_none() && run.total_ms.is_some());
}

#[test]
fn json_has_the_runs_and_every_request_and_the_table_a_row_for_each_load() {
    let server = Server::new(|number| if number == 3 { ReportsAnError } else { SHORT });
    let mut options =
        options(&server.url, "--clients 1,2 --requests 6 --slo-ttft-ms 60000 --output json --model tiny");
    let json: Value = serde_json::from_str(&printed(&options).unwrap()).expect("JSON");
    assert_eq!((&json["model"], &json["runs"][1]["load"]), (&"tiny".into(), &"2 clients".into()));
    let run = &json["runs"][0];
    assert_eq!((&run["completed"], &run["errors"][0]["count"]), (&5.into(), &1.into()));
    assert_eq!(run["samples"].as_array().map(Vec::len), Some(6));
    assert_eq!(run["goodput"]["requests"], 5);
    let spread = &run["first_token_ms"];
    let values = ["p50", "p90", "p95", "p99", "max"].map(|name| spread[name].as_f64().unwrap());
    assert!(values.is_sorted(), "{values:?}");
    options.output = Format::Md;
    let text = printed(&options).unwrap();
    let begins = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((begins("| 1 client "), begins("| 2 clients ")), (5, 5), "{text}");
    assert!(text.contains(" p95 |") && text.contains("100.0 %"), "{text}");
}

#[test]
fn a_picture_is_written_for_one_load_and_for_several() {
    let server = Server::new(|_| SHORT);
    let folder = tempfile::tempdir().unwrap();
    for (clients, lines) in [("2", 3), ("1,2,4", 7)] {
        let file = folder.path().join(format!("{lines}.svg"));
        let arguments = format!("--clients {clients} --requests 8 --plot {}", file.display());
        printed(&options(&server.url, &arguments)).unwrap();
        let picture = std::fs::read_to_string(&file).unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<polyline").count(), lines, "{clients}");
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }
}

#[test]
fn a_server_that_cannot_be_measured_is_an_error_that_says_what_to_do() {
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let said = refusal(&format!("http://{nobody}/v1"), "");
    assert!(said.starts_with(&format!("cannot reach http://{nobody}/v1: ")), "{said}");
    assert!(said.ends_with("start the server, or give --url its address"), "{said}");

    let guarded = Server::with_key(Some("right"), |_| SHORT);
    let said = refusal(&guarded.url, "--api-key wrong");
    assert!(said.contains("refuses the key (HTTP 401: the key is wrong); give --api-key"), "{said}");
    printed(&options(&guarded.url, "--api-key right --requests 2")).unwrap();
    assert!(guarded.seen().keys.iter().all(|key| key.as_deref() == Some("Bearer right")));

    let lacking = Server::new(|_| Refuses { status: 404, message: "no such model: huge" });
    let said = refusal(&lacking.url, "--model huge");
    assert!(said.contains("for the model 'huge'") && said.contains("it lists tiny, other"), "{said}");

    let broken = Server::new(|_| ReportsAnError);
    let said = refusal(&broken.url, "");
    assert!(said.contains("did not answer a first request") && said.contains("out of blocks"), "{said}");
}

#[test]
fn a_run_without_an_answer_is_a_failure() {
    let server = after_trial(Refuses { status: 503, message: "busy" });
    let options = options(&server.url, "--requests 3");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_, runs) = runtime.block_on(measure(&options)).unwrap();
    assert!(super::failed_all(&runs));
}

#[test]
fn loads_that_exclude_each_other_and_numbers_that_are_none_are_refused() {
    let refused = |arguments: &str| {
        let words = ["serve"].into_iter().chain(arguments.split_whitespace());
        Cli::try_parse_from(words).is_err()
    };
    for arguments in [
        "--clients 2 --rate 1",
        "--clients 0",
        "--rate 0",
        "--rate NaN",
        "--rate inf",
        "--duration -1",
        "--cancel 2",
        "--cancel 0.5 --no-stream",
        "--extra [1]",
        "--extra {\"stream\":true}",
        "--url nowhere",
    ] {
        assert!(refused(arguments), "{arguments}");
    }
    assert!(!refused("--rate 0.5,2e1 --extra {\"temperature\":0}"));
}
