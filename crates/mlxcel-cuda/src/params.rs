//! The parameters of a kernel as the bytes it takes them in, with the places where addresses go, which are only known
//! once memory was laid out. Fields are aligned as C aligns them.

use crate::driver::{Described, Tiles};
use crate::view::{RootId, View};

/// Where the address of a root plus an offset is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) at: usize,
    pub(crate) root: RootId,
    pub(crate) offset: u64,
    /// The driver's description of these tiles there goes in instead of the address.
    pub(crate) tiles: Option<Tiles>,
}

/// One struct of parameters, or several scalars that each are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    pub(crate) bytes: Vec<u8>,
    pub(crate) patches: Vec<Patch>,
    /// Where each parameter begins and ends; empty for one struct.
    pub(crate) scalars: Vec<(usize, usize)>,
    alignment: usize,
    separate: bool,
}

impl Params {
    /// One struct.
    pub(crate) fn new() -> Self {
        Params { alignment: 1, ..Self::default() }
    }

    /// Every value a parameter of its own.
    pub(crate) fn scalars() -> Self {
        Params { alignment: 1, separate: true, ..Self::default() }
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        let start = self.bytes.len().next_multiple_of(bytes.len());
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(bytes);
        self.alignment = self.alignment.max(bytes.len());
        if self.separate {
            self.scalars.push((start, start + bytes.len()));
        }
        self
    }

    pub(crate) fn byte(self, v: u8) -> Self {
        self.put(&[v])
    }

    pub(crate) fn int(self, v: usize) -> Self {
        let v = u32::try_from(v).expect("sizes were checked to fit 32 bits when the step was made");
        self.put(&v.to_le_bytes())
    }

    /// Another number for the last field, which is an int.
    pub(crate) fn set_last_int(&mut self, v: u32) {
        let start = self.bytes.len() - 4;
        self.bytes[start..].copy_from_slice(&v.to_le_bytes());
    }

    pub(crate) fn ints(self, values: &[usize], room: usize) -> Self {
        (0..room).fold(self, |p, i| p.int(values.get(i).copied().unwrap_or(1)))
    }

    pub(crate) fn flag(self, v: bool) -> Self {
        self.int(usize::from(v))
    }

    pub(crate) fn long(self, v: i64) -> Self {
        self.put(&v.to_le_bytes())
    }

    pub(crate) fn longs(self, values: &[i64], room: usize) -> Self {
        (0..room).fold(self, |p, i| p.long(values.get(i).copied().unwrap_or(0)))
    }

    pub(crate) fn float(self, v: f64) -> Self {
        self.put(&(v as f32).to_le_bytes())
    }

    pub(crate) fn null(self) -> Self {
        self.long(0)
    }

    pub(crate) fn address(self, at: u64) -> Self {
        self.put(&at.to_le_bytes())
    }

    /// The address of the first element of a view.
    pub(crate) fn view(self, v: &View) -> Self {
        self.place(v.root, v.byte_offset())
    }

    pub(crate) fn place(self, root: RootId, offset: u64) -> Self {
        let mut p = self.put(&0u64.to_le_bytes());
        p.patches.push(Patch { at: p.bytes.len() - 8, root, offset, tiles: None });
        p
    }

    /// Room for the description of tiles. Only at the start of a struct.
    pub(crate) fn tiles(mut self, root: RootId, offset: u64, tiles: Tiles) -> Self {
        let at = self.bytes.len();
        debug_assert!(at.is_multiple_of(64), "descriptions come first");
        self.bytes.resize(at + size_of::<Described>(), 0);
        self.alignment = self.alignment.max(64);
        self.patches.push(Patch { at, root, offset, tiles: Some(tiles) });
        self
    }

    /// A description that nothing reads.
    pub(crate) fn no_tiles(mut self) -> Self {
        self.bytes.resize(self.bytes.len() + size_of::<Described>(), 0);
        self
    }

    /// Another struct after this one, whose alignment divides what is there.
    pub(crate) fn join(mut self, other: Params) -> Self {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.patches.extend(other.patches.into_iter().map(|p| Patch { at: p.at + at, ..p }));
        self
    }

    pub(crate) fn view_or_null(self, v: Option<&View>) -> Self {
        match v {
            Some(v) => self.view(v),
            None => self.null(),
        }
    }

    /// Pads a struct to its alignment, as arrays and the kernel's own size demand.
    pub(crate) fn end(mut self) -> Self {
        let length = self.bytes.len().next_multiple_of(self.alignment.max(1));
        self.bytes.resize(length, 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_c_puts_them() {
        let p = Params::new().byte(1).int(2).long(3).int(4).end();
        assert_eq!(p.bytes.len(), 24);
        assert_eq!((p.bytes[0], p.bytes[4], p.bytes[8], p.bytes[16]), (1, 2, 3, 4));
    }
}
