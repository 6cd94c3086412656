//! The server: accepts connections, limits their number and stops gracefully.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use engine::ModelFiles;
use engine::{Llm, Options};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::adapters::Adapters;
use crate::app::{App, served_name};
use crate::connection;
use crate::events::Publisher;
use crate::guard::Guard;
use crate::listeners::Listeners;
use crate::metrics::Metrics;
use crate::options::ServeOptions;
use crate::router::router;
use crate::worker::Worker;

/// Time for connections to send the rest of their answers when the server stops.
const FLUSH: Duration = Duration::from_secs(2);

/// A server that listens on its sockets.
#[derive(Debug)]
pub struct Server {
    listeners: Listeners,
    guard: Guard,
    app: Arc<App>,
    publisher: Option<Publisher>,
}

impl Server {
    /// Opens the sockets and begins to load the model. Until the model is loaded, requests that need it are answered
    /// with 503.
    ///
    /// # Errors
    /// If the server cannot listen on the address, an option is invalid, or the model's configuration, tokenizer or
    /// chat template cannot be read.
    pub async fn bind(files: &ModelFiles, engine: &Options, options: &ServeOptions) -> Result<Self> {
        let listeners = Listeners::bind(&options.host, options.port).await?;
        let guard = Guard::new(options, &listeners.addresses()?)?;
        let name = served_name(files, options);
        if engine.lora_modules.iter().any(|(adapter, _)| *adapter == name) {
            bail!("an adapter cannot have the model's name, {name}");
        }
        let metrics = Metrics::new(&name);
        let (publisher, events) = match &options.kv_events {
            Some(options) => {
                Publisher::bind(options, &metrics).await.map(|(publisher, source)| (Some(publisher), Some(source)))?
            }
            None => (None, None),
        };
        let adapters = Arc::new(Adapters::new(engine.lora_modules.clone(), options.adapters.clone()));
        let load = {
            let adapters = adapters.clone();
            let (files, engine, prefixes) = (files.clone(), engine.clone(), options.shared_prefixes.clone());
            let (progress, events) = (options.progress, events.clone());
            move || {
                let mut llm = Llm::load_with(&files, &adapters.options_of(&engine), progress())?;
                adapters.attach(llm.adapters());
                events.iter().for_each(|events| events.follow(&mut llm));
                llm.device().notes.iter().for_each(|note| tracing::warn!("{note}"));
                prefixes.iter().try_for_each(|prefix| llm.pin_prefix(prefix))?;
                Ok(llm)
            }
        };
        let worker =
            Worker::start(load, options.limits, metrics.clone(), events).context("cannot start the engine's thread")?;
        let app = App::new(files, engine, options, (worker, adapters), metrics)?;
        Ok(Server { listeners, guard, app: Arc::new(app), publisher })
    }

    /// Returns the addresses on which it listens, at least one.
    ///
    /// # Errors
    /// If the system does not report an address.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.addresses()
    }

    /// Returns the endpoints at which KV events are published and replayed, if any.
    pub fn kv_events(&self) -> (Option<&str>, Option<&str>) {
        let publisher = self.publisher.as_ref();
        (publisher.map(|p| p.address.as_str()), publisher.and_then(|p| p.replay.as_deref()))
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    /// If the model cannot be loaded.
    pub async fn loaded(&self) -> Result<()> {
        self.app.loaded().await
    }

    /// Serves until `stop` is ready. New requests are then refused, and the server ends once the requests in progress
    /// finish or their time runs out.
    ///
    /// # Errors
    /// If the model's first load fails.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        // Keeps publishing events for as long as the server runs.
        let Server { mut listeners, guard, app, publisher: _publisher } = self;
        let connections = Connections::new(router(app.clone(), guard), &app);
        let mut background = JoinSet::new();
        background.spawn({
            let app = app.clone();
            async move { app.history.keep(&app.metrics).await }
        });
        let mut stop = pin!(stop);
        let mut loading = pin!(app.loaded());
        let mut is_loading = true;
        loop {
            tokio::select! {
                stream = listeners.accept() => connections.take(stream),
                loaded = &mut loading, if is_loading => {
                    loaded?;
                    is_loading = false;
                }
                () = &mut stop => break,
            }
        }
        tracing::info!("stopping");
        app.stop();
        let end = async {
            // The worker fails the requests that do not finish in time.
            let _ = tokio::time::timeout(app.options.limits.stop_timeout, app.idle()).await;
            app.worker.stop();
        };
        let mut end = pin!(end);
        loop {
            tokio::select! {
                stream = listeners.accept() => connections.take(stream),
                () = &mut end => break,
            }
        }
        drop(listeners);
        connections.close().await;
        Ok(())
    }
}

/// The open connections.
struct Connections {
    router: Router,
    app: Arc<App>,
    room: Arc<Semaphore>,
    open: GracefulShutdown,
}

impl Connections {
    fn new(router: Router, app: &Arc<App>) -> Self {
        let room = Arc::new(Semaphore::new(app.options.limits.max_connections));
        Connections { router, app: app.clone(), room, open: GracefulShutdown::new() }
    }

    /// Serves a connection on its own task, or closes it if too many are open.
    fn take(&self, stream: TcpStream) {
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            self.app.metrics.refused.inc();
            return;
        };
        let metrics = self.app.metrics.clone();
        let connection = connection::serve(stream, self.router.clone(), self.open.watcher(), self.app.options.limits);
        metrics.connections.inc();
        tokio::spawn(async move {
            // Clients may disconnect at any time, which is not a server error.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
            metrics.connections.dec();
            drop(permit);
        });
    }

    /// Lets connections finish their answers within a short time.
    async fn close(self) {
        let _ = tokio::time::timeout(FLUSH, self.open.shutdown()).await;
    }
}
