//! What members say to each other: a length, a message in JSON, and the bytes of the tensors it names. The other side may
//! be anything that found the port, so every size is checked before it is believed.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use mlxcel_engine::{DType, Feeds, HostTensor};
use serde::{Deserialize, Serialize};

/// Raised when messages change; members of different versions do not meet.
pub const VERSION: u32 = 2;

/// The longest message without its tensors, and the most bytes of tensors in one.
const HEADER_MAX: usize = 1 << 20;
const TENSORS_MAX: usize = 1 << 28;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    /// The first word of a worker: what it is, and what it is about to compute.
    Hello {
        version: u32,
        rank: usize,
        members: usize,
        fingerprint: u64,
    },
    /// Everybody is there: the exchange is to be joined, and was.
    Join {
        invitation: Vec<u8>,
    },
    Joined,
    /// A program with these sizes, by a number that later messages name; and that it is ready.
    Compile {
        program: u64,
        dims: BTreeMap<String, usize>,
    },
    Compiled {
        program: u64,
    },
    Step {
        program: u64,
        outputs: Vec<String>,
        tensors: Vec<Tensor>,
    },
    CopyState {
        program: u64,
        axis: String,
        pairs: Vec<(u32, u32)>,
    },
    Drop {
        program: u64,
    },
    /// Said every second, so that silence means something.
    Beat,
    Failed {
        reason: String,
    },
}

/// A tensor whose bytes follow the message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
}

/// A step's feeds as they travel: those that the graph declares.
pub fn tensors<'a>(feeds: &'a Feeds, names: &[String]) -> (Vec<Tensor>, Vec<&'a [u8]>) {
    let fed = names.iter().filter_map(|name| Some((name, feeds.get(name)?)));
    let describe = |(name, t): (&String, &'a HostTensor)| {
        let tensor = Tensor { name: name.clone(), dtype: t.dtype(), shape: t.shape().to_vec() };
        (tensor, t.bytes())
    };
    fed.map(describe).unzip()
}

pub fn write(stream: &mut impl Write, message: &Message, bytes: &[&[u8]]) -> io::Result<()> {
    let header = serde_json::to_vec(message)?;
    let mut frame = Vec::with_capacity(4 + header.len() + bytes.iter().map(|b| b.len()).sum::<usize>());
    frame.extend(u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend(header);
    bytes.iter().for_each(|b| frame.extend_from_slice(b));
    stream.write_all(&frame)?;
    stream.flush()
}

/// The next message, with the feeds of a step.
pub fn read(stream: &mut impl Read) -> io::Result<(Message, Feeds)> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > HEADER_MAX {
        return Err(bad(format!("a message of {length} bytes")));
    }
    let mut header = vec![0; length];
    stream.read_exact(&mut header)?;
    let message: Message = serde_json::from_slice(&header).map_err(|e| bad(e.to_string()))?;
    let mut feeds = Feeds::new();
    if let Message::Step { tensors, .. } = &message {
        let size = |t: &Tensor| t.dtype.storage_bytes(&t.shape).filter(|_| t.dtype.size().is_some());
        let sizes: Option<Vec<usize>> = tensors.iter().map(size).collect();
        let total = sizes.iter().flatten().try_fold(0usize, |a, b| a.checked_add(*b));
        let Some(sizes) = sizes.filter(|_| total.is_some_and(|n| n <= TENSORS_MAX)) else {
            return Err(bad("tensors too large for a step".to_string()));
        };
        for (t, size) in tensors.iter().zip(sizes) {
            let mut bytes = vec![0; size];
            stream.read_exact(&mut bytes)?;
            let tensor = HostTensor::from_bytes(t.dtype, t.shape.clone(), bytes);
            feeds.insert(&t.name, tensor.ok_or_else(|| bad(format!("'{}' is malformed", t.name)))?);
        }
    }
    Ok((message, feeds))
}

fn bad(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_arrives_as_it_was_sent() {
        let mut feeds = Feeds::new();
        feeds.insert("tokens", HostTensor::new(&[3], &[1i32, 2, 3]));
        feeds.insert("unused", HostTensor::scalar(1.0f32));
        let (tensors, bytes) = tensors(&feeds, &["tokens".to_string(), "absent".to_string()]);
        let message = Message::Step { program: 7, outputs: vec!["logits".to_string()], tensors };
        let mut sent = vec![];
        write(&mut sent, &message, &bytes).unwrap();
        write(&mut sent, &Message::Beat, &[]).unwrap();
        let mut stream = sent.as_slice();
        let (got, fed) = read(&mut stream).unwrap();
        assert_eq!((got, fed.get("tokens")), (message, feeds.get("tokens")));
        assert!(fed.get("unused").is_none());
        assert_eq!(read(&mut stream).unwrap().0, Message::Beat);
    }

    #[test]
    fn hostile_bytes_are_refused_before_memory_is_taken() {
        let framed = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
        let huge = r#"{"step":{"program":0,"outputs":[],"tensors":[{"name":"x","dtype":"f32","shape":[4294967295,99]}]}}"#;
        for bytes in [
            vec![0xff; 64],
            framed("{"),
            framed("{\"nonsense\":1}"),
            framed(huge),
            framed("\"beat\"")[..5].to_vec(),
            vec![],
        ] {
            assert!(read(&mut bytes.as_slice()).is_err(), "{bytes:?}");
        }
    }
}
