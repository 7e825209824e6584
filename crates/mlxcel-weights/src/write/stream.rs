//! Encodes a tensor piece by piece on all cores and hands the pieces on in order. The memory it takes does not grow
//! with the tensor.

use rayon::prelude::*;

use super::{NewTensor, Watch};
use crate::error::{Result, WeightsError};
use crate::quant::{Parts, encode_rows};

/// Elements that one core encodes at a time.
const TASK: usize = 1 << 16;
/// Tasks that are in memory together.
const TASKS: usize = 128;
/// Bytes that are copied at a time from a tensor that stays as it is.
const COPY: usize = 8 << 20;

/// Receives the bytes of one array of a tensor, in order.
pub(super) trait Sink {
    fn put(&mut self, part: usize, bytes: &[u8]) -> std::io::Result<()>;
}

/// Encodes all rows; every piece of array `i` goes to `sink.put(i, …)`.
pub(super) fn stream(tensor: &NewTensor, sink: &mut dyn Sink, watch: &mut dyn Watch) -> Result<()> {
    if let Some(stored) = tensor.rows.stored().filter(|s| s.dtype == tensor.dtype) {
        for (part, bytes) in stored.parts.iter().enumerate() {
            for piece in bytes.chunks(COPY) {
                put(sink, part, piece, watch)?;
            }
        }
        return Ok(());
    }
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let rows = tensor.shape.iter().product::<usize>().checked_div(cols).unwrap_or(0);
    let together = tensor.rows.together().max(1);
    let per_task = (TASK / (cols * together).max(1)).max(1) * together;
    let starts: Vec<usize> = (0..rows).step_by(per_task).collect();
    for window in starts.chunks(TASKS) {
        let encode = |&first: &usize| -> Parts {
            let mut values = vec![0.0; per_task.min(rows - first) * cols];
            tensor.rows.fill(first, &mut values);
            let mut parts = Parts::default();
            encode_rows(tensor.dtype, &values, &mut parts);
            parts
        };
        let encoded: Vec<Parts> = window.par_iter().map(encode).collect();
        for parts in encoded {
            for (part, bytes) in parts.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
                put(sink, part, bytes, watch)?;
            }
        }
    }
    Ok(())
}

fn put(sink: &mut dyn Sink, part: usize, bytes: &[u8], watch: &mut dyn Watch) -> Result<()> {
    sink.put(part, bytes).map_err(|source| WeightsError::Write { source })?;
    if watch.wrote(bytes.len() as u64) { Ok(()) } else { Err(WeightsError::Stopped) }
}
