//! The server as a whole: takes connections up to a limit, and ends politely. What is answered is `front`'s and the
//! routes' business.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mlxcel_platform::signals;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::app::App;
use crate::config::Config;
use crate::connection::{self, Terms};
use crate::error::ServerError;
use crate::lifecycle::Lifecycle;
use crate::listen::{Listener, Stream};
use crate::model::{First, Source};
use crate::{front, tls};

/// A server that has its socket and answers nobody yet.
pub struct Server {
    listener: Listener,
    app: Arc<App>,
    terms: Terms,
}

impl Server {
    /// Takes the socket and reads certificate and keys, so that what is wrong with them shows at once.
    pub async fn bind(config: Config, source: Arc<dyn Source>) -> Result<Self, ServerError> {
        let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
        let listener = Listener::bind(&config.listen).await?;
        let limits = config.limits.clone();
        let app = Arc::new(App::new(config, source)?);
        let terms = Terms { router: front::router(&app), tls, limits, watcher: app.lifecycle.watcher() };
        Ok(Server { listener, app, terms })
    }

    /// The address with the scheme, as a browser takes it; the path of a Unix socket.
    pub fn address(&self) -> String {
        match (&self.listener, &self.terms.tls) {
            (Listener::Tcp(_), None) => format!("http://{}", self.listener.address()),
            (Listener::Tcp(_), Some(_)) => format!("https://{}", self.listener.address()),
            _ => self.listener.address(),
        }
    }

    /// By which the server can be asked to end.
    pub fn lifecycle(&self) -> Lifecycle {
        self.app.lifecycle.clone()
    }

    /// Answers until it is asked to end; then requests in progress may end within the drain time.
    pub async fn run(self) -> Result<(), ServerError> {
        let Server { listener, app, terms } = self;
        let mut connections = JoinSet::new();
        let (failure, mut failed) = oneshot::channel();
        tokio::spawn(load_first(Arc::clone(&app), failure));
        let tidying = tokio::spawn(drop_idle(Arc::clone(&app)));
        accept_all(&listener, &app, &terms, &mut connections).await;
        drop(listener);
        tidying.abort();
        let drain_time = terms.limits.drain_time;
        let mut watcher = terms.watcher.clone();
        tokio::select! {
            () = async { while connections.join_next().await.is_some() {} } => {}
            () = watcher.over() => tracing::warn!("ending at once"),
            () = tokio::time::sleep(drain_time) => {
                tracing::warn!(seconds = drain_time.as_secs(), "requests did not end in time and are cut off");
                app.lifecycle.end_now();
            }
        }
        connections.shutdown().await;
        app.models.close();
        failed.try_recv().map_or(Ok(()), Err)
    }
}

/// Loads the default model where that is wanted. A server that cannot is over.
async fn load_first(app: Arc<App>, failure: oneshot::Sender<ServerError>) {
    if app.models.first() == First::WhenAsked {
        return;
    }
    if let Err(refusal) = app.models.get(None).await {
        // Told before the end is, so that the end finds the reason. Nobody listens where the server ended first.
        let _ = failure.send(ServerError::Load { reason: refusal.message });
        app.lifecycle.end_now();
    }
}

/// Drops models that nobody asks for, from time to time.
async fn drop_idle(app: Arc<App>) {
    let Some(period) = app.models.idle_period() else { return };
    loop {
        tokio::time::sleep(period).await;
        let models = Arc::clone(&app.models);
        // Dropping a model waits for its thread.
        let _ = tokio::task::spawn_blocking(move || models.drop_idle()).await;
    }
}

/// Takes connections until the server drains.
async fn accept_all(listener: &Listener, app: &Arc<App>, terms: &Terms, connections: &mut JoinSet<()>) {
    let room = Arc::new(Semaphore::new(terms.limits.connections));
    let mut watcher = terms.watcher.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = watcher.draining() => return,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(stream) => take(stream, app, terms, &room, connections).await,
            Err(error) => pause(&error).await,
        }
    }
}

async fn take(
    stream: Stream,
    app: &Arc<App>,
    terms: &Terms,
    room: &Arc<Semaphore>,
    connections: &mut JoinSet<()>,
) {
    let Ok(permit) = Arc::clone(room).try_acquire_owned() else {
        app.metrics.connections_refused.add(1);
        return connection::turn_away(stream).await;
    };
    let (app, terms) = (Arc::clone(app), terms.clone());
    connections.spawn(async move {
        app.metrics.connections.add(1);
        connection::serve(stream, terms).await;
        app.metrics.connections.subtract(1);
        drop(permit);
    });
}

/// Without descriptors left, accepting fails at once and again; others give theirs back soon.
async fn pause(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be taken");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// What an engine may take to leave its step once the server is over.
const LAST_STEP: Duration = Duration::from_secs(2);

/// Ends the process where the server is over and something in it does not come to an end, be it a step or a load.
fn end_at_last(lifecycle: &Lifecycle) {
    let mut watcher = lifecycle.watcher();
    tokio::spawn(async move {
        watcher.over().await;
        // A thread, since the runtime ends too.
        std::thread::spawn(|| {
            std::thread::sleep(LAST_STEP);
            std::process::exit(1);
        });
    });
}

/// Runs a server until a signal ends it; a second signal ends it at once, and the process with it if need be. `ready` is
/// told the address.
pub fn serve(config: Config, source: Arc<dyn Source>, ready: impl FnOnce(&str)) -> Result<(), ServerError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("http")
        .build()
        .map_err(|source| ServerError::Threads { source })?;
    let served = runtime.block_on(async {
        let server = Server::bind(config, source).await?;
        end_at_last(&server.lifecycle());
        listen_for_signals(server.lifecycle())?;
        ready(&server.address());
        server.run().await
    });
    // A load in progress is not waited for.
    runtime.shutdown_background();
    served
}

fn listen_for_signals(lifecycle: Lifecycle) -> Result<(), ServerError> {
    let end = move || {
        tracing::info!("asked to end; a second signal ends it at once");
        lifecycle.end();
    };
    signals::on_every_end(end).map_err(|source| ServerError::Signals { source })
}
