//! Connections: accepting them, bounding them, and ending them in good order.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use engine::llm::{Llm, Options};
use engine::load::ModelFiles;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use crate::app::{App, served_name};
use crate::metrics::Metrics;
use crate::options::{Limits, ServeOptions};
use crate::router::router;
use crate::worker::Worker;

/// The most that is buffered of a request's head, or of a part of its body.
const BUFFER: usize = 64 << 10;
/// The time that connections get to send the rest of their answers when the server ends.
const FLUSH: Duration = Duration::from_secs(2);
/// The time until the next try when no connection can be accepted, as when there are no more file descriptors.
const RETRY: Duration = Duration::from_millis(50);

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
}

impl Server {
    /// Listens, and begins to load the model: until it is loaded, requests for text are answered with 503.
    ///
    /// # Errors
    /// If the address cannot be had, or the model's configuration, tokenizer or chat template cannot be read.
    pub async fn bind(files: &ModelFiles, engine: &Options, options: &ServeOptions) -> Result<Self> {
        let metrics = Metrics::new(&served_name(files, options));
        let load = {
            let (files, engine, prefixes) = (files.clone(), engine.clone(), options.shared_prefixes.clone());
            move || {
                let mut llm = Llm::load(&files, &engine)?;
                prefixes.iter().try_for_each(|prefix| llm.pin_prefix(prefix))?;
                Ok(llm)
            }
        };
        let worker = Worker::start(load, options.limits.max_queue, metrics.clone()).context("no thread to be had")?;
        let app = App::new(files, engine, options, worker, metrics)?;
        let address = (options.host.as_str(), options.port);
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen at {}:{}", options.host, options.port))?;
        Ok(Server { listener, app: Arc::new(app) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    /// If it cannot be.
    pub async fn loaded(&self) -> Result<()> {
        self.app.loaded().await
    }

    /// Serves until `stop` is ready. From then on requests for text are refused; those in progress get their time, and
    /// the server ends.
    ///
    /// # Errors
    /// If the model cannot be loaded at first.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let Server { listener, app } = self;
        let limits = app.limits;
        let connections = Connections::new(router(app.clone()), &app);
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
                accepted = listener.accept() => connections.take(accepted).await,
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
            // Those that do not end in time are failed by the worker.
            let _ = tokio::time::timeout(limits.stop_timeout, app.idle()).await;
            app.worker.stop();
        };
        let mut end = pin!(end);
        loop {
            tokio::select! {
                accepted = listener.accept() => connections.take(accepted).await,
                () = &mut end => break,
            }
        }
        drop(listener);
        connections.close().await;
        Ok(())
    }
}

/// Ready when the process is asked to end: by SIGTERM, or SIGINT from a terminal.
///
/// # Errors
/// If signals cannot be waited for.
pub fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// The open connections.
struct Connections {
    http: http1::Builder,
    router: Router,
    app: Arc<App>,
    room: Arc<Semaphore>,
    open: GracefulShutdown,
}

impl Connections {
    fn new(router: Router, app: &Arc<App>) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(app.limits.read_timeout).max_buf_size(BUFFER);
        let room = Arc::new(Semaphore::new(app.limits.max_connections));
        Connections { http, router, app: app.clone(), room, open: GracefulShutdown::new() }
    }

    /// Serves a connection on a task of its own, or closes it if there are too many.
    async fn take(&self, accepted: std::io::Result<(TcpStream, SocketAddr)>) {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                return tokio::time::sleep(RETRY).await;
            }
        };
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            self.app.metrics.refused.inc();
            return;
        };
        // Tokens are sent as they come. If the system refuses this they are only late.
        let _ = stream.set_nodelay(true);
        let Limits { write_timeout, .. } = self.app.limits;
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(write_timeout));
        let service = TowerToHyperService::new(self.router.clone());
        let connection = self.open.watch(self.http.serve_connection(TokioIo::new(Box::pin(stream)), service));
        let metrics = self.app.metrics.clone();
        metrics.connections.inc();
        tokio::spawn(async move {
            // Clients go as they like.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
            metrics.connections.dec();
            drop(permit);
        });
    }

    /// Lets connections end their answers, for a short time.
    async fn close(self) {
        let _ = tokio::time::timeout(FLUSH, self.open.shutdown()).await;
    }
}
