//! `run` in a real terminal: tmux types, and tells what the screen shows. What was said is read from the files that
//! `/save` writes, so that nothing depends on how a screen wraps lines.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::snapshot;
use crate::support::{ModelCopy, comma_separated, ids, read_json, run_json};
use crate::text::{bytes, message, opening, spelled};

/// What an empty prompt shows.
const PROMPT: &str = ">>> Send a message (/? for help)";

/// A terminal with a shell's command line in it, on a server of its own.
struct Terminal {
    /// Holds the server's socket, and nothing else.
    server: TempDir,
    folder: TempDir,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

impl Terminal {
    /// Runs `mlxcel run` with these arguments; the shell tells the exit code at its end.
    fn run(arguments: &[&str]) -> Self {
        Self::run_in(tempfile::tempdir().expect("a temporary folder"), "screen", arguments)
    }

    /// The same in a folder that may hold files, on a terminal of this kind.
    fn run_in(folder: TempDir, term: &str, arguments: &[&str]) -> Self {
        let quoted = |text: &&str| format!("'{}'", text.replace('\'', "'\\''"));
        let arguments = arguments.iter().map(quoted).collect::<Vec<_>>().join(" ");
        let binary = quoted(&env!("CARGO_BIN_EXE_mlxcel"));
        let line = format!(
            "export TERM={term} MLXCEL_HISTORY=history MLXCEL_PACKED_CACHE=off LC_ALL=C.UTF-8; unset NO_COLOR CLICOLOR CLICOLOR_FORCE; (echo \
             $BASHPID > pid; exec {binary} run {arguments}); echo \"code $?\"; stty -a > stty; echo done; cat"
        );
        let terminal = Terminal { server: tempfile::tempdir().expect("a temporary folder"), folder };
        let place = terminal.folder.path().to_str().expect("UTF-8").to_string();
        let shell = ["new-session", "-d", "-x", "120", "-y", "60", "-c", &place, "bash", "-c", &line];
        let started = terminal.tmux(&shell);
        assert!(started.status.success(), "tmux: {}", String::from_utf8_lossy(&started.stderr));
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        // Without a UTF-8 locale tmux shows wide characters as underscores.
        command.args(["-u", "-f", "/dev/null", "-S"]).arg(self.server.path().join("socket"));
        command.env_remove("TMUX").args(arguments);
        command
            .output()
            .unwrap_or_else(|e| panic!("tmux cannot be started ({e}); install it to run this test"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// All lines so far, those that were wrapped in one piece.
    fn screen(&self) -> String {
        let shown = self.tmux(&["capture-pane", "-p", "-J", "-S", "-"]);
        let text = String::from_utf8(shown.stdout).expect("the screen is UTF-8");
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>().trim_end().to_string()
    }

    /// Waits until the screen is as wanted. How long that takes is no part of a test; for ever is.
    fn wait(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        for _ in 0..600 {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            sleep(Duration::from_millis(100));
        }
        panic!("no {what} on the screen:\n{}", self.screen());
    }

    fn wait_for(&self, text: &str) -> String {
        self.wait(text, |screen| screen.contains(text))
    }

    fn wait_for_prompt(&self) -> String {
        self.wait("empty prompt", |screen| screen.ends_with(PROMPT))
    }

    fn key(&self, key: &str) {
        assert!(self.tmux(&["send-keys", key]).status.success(), "{key}");
    }

    /// Types a text without Enter, and waits until it is seen.
    fn type_text(&self, text: &str) {
        let before = self.screen();
        assert!(self.tmux(&["send-keys", "-l", "--", text]).status.success(), "{text}");
        self.wait(text, |screen| screen != before);
    }

    /// Types a line at an empty prompt, and waits until it is dealt with.
    fn enter(&self, line: &str) -> String {
        self.wait_for_prompt();
        self.type_text(line);
        self.key("Enter");
        self.wait_for_prompt()
    }

    /// What was said so far.
    fn saved(&self, name: &str) -> Vec<(String, String)> {
        self.enter(&format!("/save {name}"));
        let text = |value: &Value| value.as_str().expect("a text").to_string();
        let saved = read_json(&self.file(name));
        let messages = saved["messages"].as_array().expect("messages").iter();
        messages.map(|m| (text(&m["role"]), text(&m["content"]))).collect()
    }

    /// Leaves, and returns the exit code that the shell saw.
    fn end(&self, key: &str) -> String {
        self.key(key);
        self.ended()
    }

    fn ended(&self) -> String {
        let screen = self.wait("end", |screen| screen.ends_with("done"));
        let line = screen.lines().rev().find_map(|line| line.strip_prefix("code "));
        line.expect("the shell tells the code").to_string()
    }

    fn into_folder(mut self) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let _ = self.tmux(&["kill-server"]);
        std::mem::replace(&mut self.folder, folder)
    }
}

/// The ids of a conversation, up to where the next answer begins.
fn conversation(messages: &[(String, String)]) -> Vec<u32> {
    messages.iter().flat_map(|(role, content)| message(role, content)).chain(opening()).collect()
}

/// What `generate` makes of the ids, in a process that knows of no earlier turn.
fn generated(model: &ModelCopy, prompt: &[u32], n: &str) -> Value {
    let prompt = comma_separated(prompt);
    let flags = ["generate", "-m", model.argument(), "--prompt-tokens", &prompt, "--temp", "0", "-n", n];
    run_json(&[&flags[..], &["--ignore-eos"]].concat())["tokens"].clone()
}

fn said(messages: &[(String, String)], index: usize) -> &str {
    &messages[index].1
}

#[test]
fn a_second_turn_computes_only_what_is_new_and_answers_as_if_all_were() {
    let model = ModelCopy::with_chat();
    let flags = ["-m", model.argument(), "--temp", "0", "-n", "12", "--ignore-eos", "--system", "Be kind."];
    let terminal = Terminal::run(&flags);
    terminal.enter("Grüße 👋🏽, 漢字!");
    let first = terminal.saved("first.json");
    assert_eq!(said(&first, 1), "Grüße 👋🏽, 漢字!");
    let prompt = conversation(&first[..2]);
    let answer = generated(&model, &prompt, "12");
    assert_eq!(said(&first, 2), spelled(&answer));

    terminal.enter("And then?");
    let second = terminal.saved("second.json");
    assert_eq!(second[..3], first[..]);
    let whole = conversation(&second[..4]);
    assert_eq!(said(&second, 4), spelled(&generated(&model, &whole, "12")));

    // The last token of the first answer was drawn and not computed.
    let known = [&prompt[..], &ids(&answer)[..11]].concat();
    let reused = known.iter().zip(&whole).take_while(|(a, b)| a == b).count();
    assert!(reused >= prompt.len());
    let screen = terminal.enter("/stats");
    let expected =
        format!("reused {reused} of {} tokens, computed {} at ", whole.len(), whole.len() - reused);
    assert!(screen.contains(&expected), "no '{expected}' in:\n{screen}");
    let context = format!("context  {} of 512 tokens", whole.len() + 12);
    assert!(screen.contains(&context), "no '{context}' in:\n{screen}");
    assert_eq!(terminal.end("C-d"), "0");
}

#[test]
fn a_chat_looks_as_recorded() {
    let model = ModelCopy::with_chat();
    let terminal = Terminal::run(&[model.argument(), "--temp", "0", "-n", "16", "--ignore-eos"]);
    let lines =
        ["/?", "Hello there!", "/set", "/set temp 3O", "/set top_k 20", "/system Be kind.", "/system"];
    let more =
        ["/tsats", "//etc is what?", "/save chat.json", "/clear", "/load chat.json", "/load /dev/null"];
    for line in lines.into_iter().chain(more) {
        terminal.enter(line);
    }
    terminal.type_text("\"\"\"two");
    terminal.key("Enter");
    terminal.type_text("lines\"\"\"");
    terminal.key("Enter");
    terminal.enter("/save chat.json");
    terminal.type_text("/bye");
    terminal.end("Enter");
    snapshot::check("run/session", &format!("{}\n", terminal.screen()));
}

#[test]
fn ctrl_c_ends_an_answer_and_the_chat_goes_on() {
    let model = ModelCopy::with_chat();
    model.configure("max_position_embeddings", json!(100_000));
    let flags = [model.argument(), "--temp", "0", "-c", "100000", "--ignore-eos"];
    let terminal = Terminal::run(&flags);
    terminal.wait_for_prompt();
    terminal.type_text("Go on for ever");
    terminal.key("Enter");
    terminal.wait("answer", |screen| {
        screen.split_once("ever").is_some_and(|(_, answer)| answer.chars().count() > 200)
    });
    terminal.key("C-c");
    terminal.enter("/set max_tokens 8");
    terminal.enter("Now something short");
    let messages = terminal.saved("chat.json");
    let roles: Vec<&str> = messages.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert!(said(&messages, 1).chars().count() > 100, "what was answered is kept");
    let expected = spelled(&generated(&model, &conversation(&messages[..3]), "8"));
    assert_eq!(said(&messages, 3), expected);
    assert!(terminal.screen().contains("note: the answer is cut after 8 tokens"));

    // At the prompt Ctrl-C only says how to leave, and takes back what was typed.
    terminal.key("C-c");
    terminal.wait_for("Use Ctrl-D or /bye to leave.");
    terminal.type_text("never sent");
    terminal.wait_for(">>> never sent");
    terminal.key("C-c");
    terminal.wait_for_prompt();
    assert_eq!(terminal.saved("again.json").len(), 4);
    terminal.type_text("/bye");
    assert_eq!(terminal.end("Enter"), "0");
}

#[test]
fn ctrl_c_before_an_answer_begins_drops_the_message() {
    let model = ModelCopy::with_chat();
    model.configure("max_position_embeddings", json!(100_000));
    let terminal =
        Terminal::run(&[model.argument(), "--temp", "0", "-n", "4", "-c", "100000", "--ignore-eos"]);
    // So long a conversation takes much longer to compute than a key to press.
    let long = json!([{ "role": "user", "content": "a b ".repeat(20_000) }, { "role": "assistant", "content": "c" }]);
    fs::write(terminal.file("long.json"), json!({ "messages": long }).to_string()).expect("written");
    terminal.enter("/load long.json");
    terminal.type_text("What now?");
    terminal.key("Enter");
    // The editor leaves the line when it has read Enter, and from then on Ctrl-C is no key of its own.
    let cursor = || terminal.tmux(&["display-message", "-p", "#{cursor_x}"]).stdout;
    terminal.wait("sent message", |_| cursor() == b"0\n");
    terminal.wait("stopped answer", |screen| {
        let is_stopped = screen.contains("note: stopped before the answer began; the message is dropped");
        if !is_stopped {
            terminal.key("C-c");
        }
        is_stopped
    });
    assert_eq!(terminal.saved("after.json").len(), 2);
    terminal.enter("/clear");
    terminal.enter("Short");
    assert_eq!(terminal.saved("short.json").len(), 2);
}

#[test]
fn lines_are_edited_by_character_and_may_be_several() {
    let model = ModelCopy::with_chat();
    let terminal = Terminal::run(&[model.argument(), "--temp", "0", "-n", "1", "--ignore-eos"]);
    terminal.wait_for_prompt();
    // Takes back the emoji, which is five code points and two columns, from between others.
    terminal.type_text("ab👩‍👩‍👧漢c");
    for key in ["Left", "Left", "BSpace", "End"] {
        terminal.key(key);
    }
    terminal.type_text("!");
    terminal.key("Enter");
    terminal.wait_for_prompt();

    terminal.type_text("\"\"\"first 漢字");
    terminal.key("Enter");
    terminal.type_text("  second \\");
    terminal.key("Enter");
    terminal.type_text("/third\"\"\"");
    terminal.key("Enter");
    terminal.wait_for_prompt();

    terminal.type_text("one\\");
    terminal.key("Enter");
    terminal.type_text("two");
    terminal.key("Enter");
    terminal.wait_for_prompt();

    assert!(terminal.tmux(&["set-buffer", "pasted\n/bye\nlines"]).status.success());
    assert!(terminal.tmux(&["paste-buffer", "-p"]).status.success());
    terminal.wait_for("lines");
    terminal.key("Enter");

    let messages = terminal.saved("chat.json");
    let users = messages.iter().filter(|(role, _)| role == "user");
    let texts: Vec<&str> = users.map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["ab漢c!", "first 漢字\n  second \\\n/third", "one\ntwo", "pasted\n/bye\nlines"]);
}

#[test]
fn lines_are_kept_from_one_chat_to_the_next_for_their_owner_only() {
    let model = ModelCopy::with_chat();
    let flags = [model.argument(), "--temp", "0", "-n", "1", "--ignore-eos"];
    let terminal = Terminal::run(&flags);
    terminal.enter("a line to 👋 remember");
    terminal.enter("another one");
    assert_eq!(terminal.end("C-d"), "0");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(terminal.file("history")).expect("the history is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let terminal = Terminal::run_in(terminal.into_folder(), "screen", &flags);
    terminal.wait_for_prompt();
    terminal.key("Up");
    terminal.wait_for(">>> another one");
    terminal.key("Up");
    terminal.wait_for(">>> a line to 👋 remember");
    terminal.key("Enter");
    let messages = terminal.saved("chat.json");
    assert_eq!(said(&messages, 0), "a line to 👋 remember");
}

#[test]
fn a_saved_conversation_goes_on_where_it_ended() {
    let model = ModelCopy::with_chat();
    let flags = [model.argument(), "--temp", "0", "-n", "6", "--ignore-eos"];
    let terminal = Terminal::run(&flags);
    terminal.enter("/system \"\"\"Be kind.\"\"\"");
    terminal.enter("/set seed 7");
    terminal.enter("Remember 漢字");
    let saved = terminal.saved("chat.json");
    assert_eq!(saved[0], ("system".to_string(), "Be kind.".to_string()));
    assert_eq!(terminal.end("C-d"), "0");

    let terminal = Terminal::run_in(terminal.into_folder(), "screen", &flags);
    fs::write(terminal.file("hostile.json"), "{\"messages\":[{\"role\":\"user\",\"content\":7}]}")
        .expect("written");
    terminal.enter("Not yet");
    let before = terminal.saved("before.json");
    let screen = terminal.enter("/load hostile.json");
    assert!(screen.contains("error: 'hostile.json' holds no conversation"), "{screen}");
    assert!(terminal.enter("/load nowhere.json").contains("error: cannot read 'nowhere.json'"));
    assert_eq!(terminal.saved("after.json"), before, "what cannot be loaded changes nothing");
    let screen = terminal.enter("/load chat.json");
    assert!(screen.contains("loaded 3 messages"), "{screen}");
    terminal.enter("Go on");
    let messages = terminal.saved("chat.json");
    assert_eq!(messages[..3], saved[..]);
    let expected = spelled(&generated(&model, &conversation(&messages[..4]), "6"));
    assert_eq!(said(&messages, 4), expected);
    assert_eq!(read_json(&terminal.file("chat.json"))["settings"]["seed"], 7);

    terminal.enter("/clear");
    assert_eq!(terminal.saved("cleared.json"), saved[..1], "the system message stays");
}

#[test]
fn commands_answer_on_the_screen() {
    let model = ModelCopy::with_chat();
    let terminal = Terminal::run(&[model.argument(), "--temp", "0", "-c", "40", "--ignore-eos"]);
    assert!(terminal.enter("/?").contains("/save FILE"));
    assert!(terminal.enter("/stats").contains("nothing was answered yet"));
    assert!(terminal.enter("/hlep").contains("error: there is no command '/hlep': did you mean /help?"));
    assert!(terminal.enter("/set temp hot").contains("error: 'hot' is no value for temp"));
    assert!(terminal.enter("/set").contains("max_tokens"));
    let screen = terminal.enter("Hi");
    assert!(
        screen.contains("note: the answer is cut, since the 40 tokens of the context are full"),
        "{screen}"
    );
    // What does not fit is refused with both counts, and is not part of the conversation.
    let before = terminal.saved("before.json");
    let asked = [&before[..], &[("user".to_string(), "More".to_string())]].concat();
    let expected = format!("has {} tokens, but there is room for 40", conversation(&asked).len());
    let screen = terminal.enter("More");
    assert!(screen.contains(&expected) && screen.contains("/clear"), "no '{expected}' in:\n{screen}");
    assert_eq!(terminal.saved("after.json"), before);
    terminal.enter("/clear");
    terminal.enter("//a");
    assert_eq!(said(&terminal.saved("slash.json"), 0), "/a");
}

#[test]
fn a_message_that_the_template_refuses_is_no_part_of_the_conversation() {
    let model = ModelCopy::with_chat();
    let refuse = "{% if 'mustard' in m.content %}{{ raise_exception('no mustard') }}{% endif %}";
    let template = format!("{{% for m in messages %}}{refuse}{{{{ m.content }}}}{{% endfor %}}");
    model.write("tokenizer_config.json", &json!({ "chat_template": template }));
    let terminal = Terminal::run(&[model.argument(), "--temp", "0", "-n", "2", "--ignore-eos"]);
    terminal.enter("cheese");
    assert!(terminal.enter("mustard").contains("error: the chat template refused the messages: no mustard"));
    terminal.enter("bread");
    let messages = terminal.saved("chat.json");
    assert_eq!((messages.len(), said(&messages, 2)), (4, "bread"));
}

#[test]
fn the_invitation_is_dim_where_there_is_colour() {
    let model = ModelCopy::with_chat();
    for (flag, is_dim) in [("--color=auto", true), ("--color=never", false)] {
        let terminal = Terminal::run(&[model.argument(), flag]);
        terminal.wait_for_prompt();
        let shown = terminal.tmux(&["capture-pane", "-p", "-e"]).stdout;
        let shown = String::from_utf8(shown).expect("the screen is UTF-8");
        assert_eq!(shown.contains("\x1b[2mSend a message"), is_dim, "{flag}: {shown:?}");
    }
}

#[test]
fn a_dumb_terminal_sees_no_escape_codes() {
    let model = ModelCopy::with_chat();
    let flags = [model.argument(), "--temp", "0", "-n", "30", "--ignore-eos"];
    let terminal = Terminal::run_in(tempfile::tempdir().expect("a folder"), "dumb", &flags);
    let log = terminal.file("log");
    let record = format!("cat > '{}'", log.display());
    assert!(terminal.tmux(&["pipe-pane", "-o", &record]).status.success());
    let wait = || terminal.wait("plain prompt", |screen| screen.ends_with("\n>>>") || screen == ">>>");
    wait();
    for line in ["Grüße \\", "漢字 👋", "/save chat.json"] {
        terminal.type_text(line);
        terminal.key("Enter");
        if !line.ends_with('\\') {
            wait();
        }
    }
    let saved = read_json(&terminal.file("chat.json"));
    assert_eq!(saved["messages"][0]["content"], "Grüße \n漢字 👋");
    terminal.key("C-c");
    terminal.wait_for("Use Ctrl-D or /bye to leave.");
    assert_eq!(terminal.end("C-d"), "0");
    let written = fs::read(log).expect("the output was recorded");
    assert!(String::from_utf8_lossy(&written).contains("saved 2 messages"));
    assert!(!written.contains(&0x1b), "{}", String::from_utf8_lossy(&written));
}

#[test]
fn a_chat_that_is_told_to_end_leaves_the_terminal_as_it_was() {
    let model = ModelCopy::with_chat();
    let terminal = Terminal::run(&[model.argument()]);
    terminal.wait_for_prompt();
    let pid = fs::read_to_string(terminal.file("pid")).expect("the shell wrote it");
    let kill = Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).status();
    assert!(kill.expect("sh is there").success());
    assert_eq!(terminal.ended(), "143");
    let settings = fs::read_to_string(terminal.file("stty")).expect("the shell wrote it");
    for flag in ["icanon", "echo", "isig", "icrnl"] {
        let is_set = settings.split(|c: char| c.is_whitespace() || c == ';').any(|word| word == flag);
        assert!(is_set, "{flag} is not set: {settings}");
    }
}

#[test]
fn a_base_model_goes_on_with_the_text_of_all_turns() {
    let model = ModelCopy::with_tokenizer();
    let terminal = Terminal::run(&[model.argument(), "--temp", "0", "-n", "5", "--ignore-eos"]);
    terminal.wait_for("note: the model has no chat template");
    terminal.enter("Once");
    terminal.enter("There was");
    let messages = terminal.saved("chat.json");
    let [first, second] = [said(&messages, 1), said(&messages, 3)];
    assert_eq!(first, spelled(&generated(&model, &bytes("Once"), "5")));
    let text = format!("Once{first}{}There was", if first.ends_with('\n') { "" } else { "\n" });
    assert_eq!(second, spelled(&generated(&model, &bytes(&text), "5")));
    assert!(terminal.enter("/system Be kind.").contains("error: without a chat template"));
}
