//! Builds small files byte by byte, right or wrong ones.

/// Bytes under construction.
#[derive(Clone, Default)]
pub(crate) struct Forge(pub(crate) Vec<u8>);

impl Forge {
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// A GGUF string.
    pub(crate) fn string(self, text: &str) -> Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    /// The start of a GGUF file, version 3.
    pub(crate) fn gguf(tensors: u64, pairs: u64) -> Self {
        Forge::default().raw(b"GGUF").u32(3).u64(tensors).u64(pairs)
    }

    /// A metadata pair of type u32.
    pub(crate) fn pair(self, key: &str, value: u32) -> Self {
        self.string(key).u32(4).u32(value)
    }

    /// A row of the tensor table; `dims` in file order.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let named = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(named, |f, &d| f.u64(d)).u32(kind).u64(offset)
    }

    /// Zeros up to a multiple of `alignment`, then the data.
    pub(crate) fn data(mut self, alignment: usize, bytes: &[u8]) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self.raw(bytes).0
    }
}

/// A safetensors file with this header.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    Forge::default().u64(header.len() as u64).raw(header.as_bytes()).raw(data).0
}

/// A header entry.
pub(crate) fn entry(name: &str, dtype: &str, shape: &[usize], range: std::ops::Range<usize>) -> String {
    format!(
        r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{},{}]}}"#,
        range.start, range.end
    )
}
