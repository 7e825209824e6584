//! The thread that makes vectors, one batch after the other. A batch whose client is gone is passed over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::{EmbedError, Embedder, LoadError};
use crate::refusal::{Kind, Refusal};

type Vectors = Result<Vec<Vec<f32>>, EmbedError>;

struct Batch {
    sequences: Vec<Vec<u32>>,
    reply: oneshot::Sender<Vectors>,
}

pub struct EmbeddingThread {
    batches: Option<Sender<Batch>>,
    waiting: Arc<AtomicUsize>,
    queue_max: usize,
    is_up: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EmbeddingThread {
    /// No more than `queue_max` batches wait.
    pub fn start(name: &str, embedder: Box<dyn Embedder>, queue_max: usize) -> Result<Self, LoadError> {
        let (batches, received) = mpsc::channel();
        let (is_up, waiting) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let (up, unseen) = (Arc::clone(&is_up), Arc::clone(&waiting));
        let builder = std::thread::Builder::new().name(format!("model {name}"));
        let thread = builder.spawn(move || run(embedder, &received, (&unseen, &up)));
        let thread =
            thread.map_err(|e| LoadError { reason: format!("its thread cannot be started: {e}") })?;
        Ok(EmbeddingThread { batches: Some(batches), waiting, queue_max, is_up, thread: Some(thread) })
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// The vectors of sequences, none of which is empty.
    pub async fn embed(&self, sequences: Vec<Vec<u32>>) -> Result<Vec<Vec<f32>>, Refusal> {
        let gone = || Refusal::new(Kind::Unavailable, "the engine broke down; try again later");
        let batches = self.batches.as_ref().ok_or_else(gone)?;
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.queue_max {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(Refusal::new(Kind::Busy, "too many texts are waiting; try again later"));
        }
        let (reply, answer) = oneshot::channel();
        batches.send(Batch { sequences, reply }).map_err(|_| gone())?;
        let vectors = answer.await.map_err(|_| gone())?;
        vectors.map_err(|error| Refusal::internal(error.to_string()))
    }
}

impl Drop for EmbeddingThread {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // What panicked in it was logged there.
            let _ = thread.join();
        }
    }
}

fn run(
    mut embedder: Box<dyn Embedder>,
    batches: &Receiver<Batch>,
    (waiting, is_up): (&AtomicUsize, &AtomicBool),
) {
    while let Ok(Batch { sequences, reply }) = batches.recv() {
        waiting.fetch_sub(1, Ordering::AcqRel);
        if reply.is_closed() {
            continue;
        }
        let mut embed = |sequences: &[Vec<u32>]| catch_unwind(AssertUnwindSafe(|| embedder.embed(sequences)));
        let vectors = embed(&sequences).unwrap_or_else(|_| {
            tracing::error!("the engine broke down while it made embeddings");
            // One token tells whether it goes on.
            let token = sequences.first().and_then(|s| s.first()).copied().unwrap_or(0);
            is_up.store(embed(&[vec![token]]).is_ok(), Ordering::Release);
            Err(EmbedError { reason: "the engine broke down".to_string() })
        });
        // Who is gone need not know.
        let _ = reply.send(vectors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks down at a token, and for good at another.
    #[derive(Default)]
    struct Fragile {
        is_broken: bool,
    }

    impl Embedder for Fragile {
        fn embed(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
            self.is_broken |= sequences[0].contains(&13);
            assert!(!self.is_broken && !sequences[0].contains(&7), "it breaks down");
            Ok(vec![vec![1.0]])
        }
    }

    #[tokio::test]
    async fn a_model_that_goes_on_after_a_breakdown_is_up() {
        let thread = EmbeddingThread::start("fragile", Box::new(Fragile::default()), 4).unwrap();
        assert!(thread.embed(vec![vec![1, 7]]).await.is_err());
        assert!(thread.is_up());
        assert!(thread.embed(vec![vec![1]]).await.is_ok());
        assert!(thread.embed(vec![vec![1, 13]]).await.is_err());
        assert!(!thread.is_up(), "it can do nothing any more");
    }

    /// Says that it has begun, and waits until it may go on.
    struct Slow {
        begun: Sender<()>,
        go_on: Receiver<()>,
    }

    impl Embedder for Slow {
        fn embed(&mut self, _: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
            self.begun.send(()).unwrap();
            self.go_on.recv().unwrap();
            Ok(vec![vec![1.0]])
        }
    }

    #[tokio::test]
    async fn no_more_wait_than_are_allowed_to() {
        let (begun, begins) = mpsc::channel();
        let (goes_on, go_on) = mpsc::channel();
        let thread = Arc::new(EmbeddingThread::start("slow", Box::new(Slow { begun, go_on }), 1).unwrap());
        let embed = || {
            let thread = Arc::clone(&thread);
            tokio::spawn(async move { thread.embed(vec![vec![1]]).await.is_ok() })
        };
        let computed = embed();
        tokio::task::yield_now().await;
        begins.recv().unwrap();
        let waiting = embed();
        tokio::task::yield_now().await;
        let refused = thread.embed(vec![vec![1]]).await.unwrap_err();
        assert!(refused.message.contains("too many texts are waiting"), "{}", refused.message);
        goes_on.send(()).unwrap();
        begins.recv().unwrap();
        goes_on.send(()).unwrap();
        assert!(computed.await.unwrap() && waiting.await.unwrap());
    }
}
