//! Serves one connection: bounds the time of each phase, and closes the connection gracefully.
//!
//! ```text
//!          a byte           the whole head            the answer is written
//!   idle ----------> head ------------------> answering -----------------> idle, or closing
//!   keep-alive       read timeout             limits of its own            read timeout
//! ```
//!
//! If the server closed a connection while its client still sends, the system would reset it. The client would then
//! often lose the answer, such as the refusal of a body that is too large. The server therefore first ends its own side
//! of the connection. For a while it then discards incoming data until the client closes its side too.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::options::RequestLimits;

/// Maximum bytes buffered of a request's head, or of a part of its body.
const BUFFER: usize = 64 << 10;
/// Bytes discarded per read while a connection closes.
const DISCARDED: usize = 16 << 10;

/// The phase of a connection, between two requests or within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The connection is kept open for the next request.
    Idle,
    /// A request is expected because the connection is new, or a request has begun to arrive.
    Head,
    /// A request is being answered.
    Answering,
    /// The answer is sent, and incoming data is discarded.
    Closing,
}

/// Reports the phase of a connection to the connection's task. Clones report to the same task.
#[derive(Clone, Debug)]
struct Progress(watch::Sender<Phase>);

/// A request in progress. Dropping it ends the request.
struct Answering(Progress);

/// Answers the requests of a connection until its client closes it, a phase takes too long, or `open` is told to shut
/// down.
///
/// # Errors
/// If the connection breaks or times out.
pub async fn serve(stream: TcpStream, router: Router, open: Watcher, limits: RequestLimits) -> anyhow::Result<()> {
    let (sender, mut phase) = watch::channel(Phase::Head);
    let progress = Progress(sender);
    let stream = TokioIo::new(Stream::new(stream, limits.write_timeout, progress.clone()));
    let service = service_fn(move |request: Request<Incoming>| {
        let answering = progress.answer();
        let response = router.clone().oneshot(request);
        async move {
            let response = response.await?;
            // The request is in progress until its response body is dropped.
            Ok::<_, Infallible>(response.map(|body| {
                body.map_frame(move |frame| {
                    let _ = &answering;
                    frame
                })
            }))
        }
    });
    let mut http = http1::Builder::new();
    // This task times the head itself, because hyper would also count the wait for its first byte.
    http.header_read_timeout(None).max_buf_size(BUFFER);
    let mut connection = pin!(open.watch(http.serve_connection(stream, service)));
    loop {
        let limit = match *phase.borrow_and_update() {
            Phase::Idle => limits.keep_alive,
            Phase::Head | Phase::Closing => limits.read_timeout,
            Phase::Answering => Duration::MAX,
        };
        tokio::select! {
            ended = &mut connection => return Ok(ended?),
            _ = phase.changed() => {}
            () = tokio::time::sleep(limit) => anyhow::bail!("it timed out in phase {:?}", *phase.borrow()),
        }
    }
}

impl Progress {
    /// Records that bytes arrived. On an idle connection they begin a request's head.
    fn received(&self) {
        self.0.send_if_modified(|phase| {
            let begins = *phase == Phase::Idle;
            if begins {
                *phase = Phase::Head;
            }
            begins
        });
    }

    /// Records that bytes were sent. On an idle connection this restarts the keep-alive time, which therefore counts from
    /// the end of the last answer.
    fn sent(&self) {
        self.0.send_if_modified(|phase| *phase == Phase::Idle);
    }

    /// Records that a request's head is complete.
    fn answer(&self) -> Answering {
        self.0.send_replace(Phase::Answering);
        Answering(self.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.send_replace(Phase::Idle);
    }
}

/// A client's TCP stream that reports its progress and closes gracefully.
struct Stream {
    // Pinned because it contains a timer.
    inner: Pin<Box<TimeoutStream<TcpStream>>>,
    progress: Progress,
    /// Whether the server has ended its side of the connection.
    ended: bool,
}

impl Stream {
    fn new(stream: TcpStream, write_timeout: Duration, progress: Progress) -> Self {
        // Sends each token at once instead of collecting small packets. If the system refuses this option, tokens
        // arrive late, which is harmless.
        let _ = stream.set_nodelay(true);
        let mut inner = TimeoutStream::new(stream);
        inner.set_write_timeout(Some(write_timeout));
        Stream { inner: Box::pin(inner), progress, ended: false }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.inner.as_mut().poll_read(cx, buf);
        if buf.filled().len() > before {
            self.progress.received();
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.inner.as_mut().poll_write(cx, buf);
        if written.is_ready() {
            self.progress.sent();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.inner.as_mut().poll_write_vectored(cx, bufs);
        if written.is_ready() {
            self.progress.sent();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.ended {
            ready!(self.inner.as_mut().poll_shutdown(cx))?;
            self.ended = true;
            self.progress.0.send_replace(Phase::Closing);
        }
        let mut discarded = [0; DISCARDED];
        loop {
            let mut buf = ReadBuf::new(&mut discarded);
            match ready!(self.inner.as_mut().poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                // The client has closed the connection, or it broke.
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}
