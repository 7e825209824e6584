//! Being told to end. Ctrl-C in a program without tokio is not here: what it means depends on what is going on.

use std::io;

/// Calls `then` once, on a thread of its own, when the process is told to end, with the exit code that tells by what.
/// Without this the first process of a container, for which signals do nothing by themselves, would not end at all.
/// Windows ends a process without asking; there only Ctrl-C is told.
#[cfg(unix)]
pub fn on_end(then: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGHUP])?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            then(128 + signal);
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(wait)?;
    Ok(())
}

#[cfg(not(unix))]
pub fn on_end(_then: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    Ok(())
}

/// Calls `then` every time the process is told to end, in tasks of the runtime that this is called in.
#[cfg(all(unix, feature = "tokio"))]
pub fn on_every_end(then: impl Fn() + Clone + Send + 'static) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        let mut signals = signal(kind)?;
        let then = then.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                then();
            }
        });
    }
    Ok(())
}

/// Calls `then` every time the process is told to end, in tasks of the runtime that this is called in: by Ctrl-C or
/// Ctrl-Break, by closing the console, or by the machine's shutting down.
#[cfg(all(windows, feature = "tokio"))]
pub fn on_every_end(then: impl Fn() + Clone + Send + 'static) -> io::Result<()> {
    use tokio::signal::windows;
    macro_rules! listen {
        ($signals:expr) => {{
            let (mut signals, then) = ($signals?, then.clone());
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    then();
                }
            });
        }};
    }
    listen!(windows::ctrl_c());
    listen!(windows::ctrl_break());
    listen!(windows::ctrl_close());
    listen!(windows::ctrl_shutdown());
    Ok(())
}
