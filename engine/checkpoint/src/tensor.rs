//! Tensors in host memory: a type, a shape and bytes that are mapped, borrowed or owned.

mod kv_dtype;
mod quantised;

use std::ops::Range;
use std::sync::Arc;
use std::{fmt, io};

use half::{bf16, f16};

pub use self::kv_dtype::KvDtype;
use crate::error::Result;
use crate::mapping::Mapping;
use crate::quantised::QuantType;

/// The element types of weights and of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32: 8 bits of exponent, 8 of precision.
    Bf16,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        })
    }
}

/// The storage of a tensor's bytes. Mapped bytes are paged in when accessed and cost no memory of their own.
enum Storage {
    /// Pages that contain exactly this tensor.
    Mapped(Mapping),
    /// Bytes that are part of the program.
    Static(&'static [u8]),
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    /// Quantised groups.
    Groups(Vec<u8>),
    /// Pages of zeros.
    Zeros(Mapping),
    /// A range of another storage: some rows of the original tensor.
    Part(Arc<Storage>, Range<usize>),
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        match self {
            Storage::Mapped(map) | Storage::Zeros(map) => map,
            Storage::Static(bytes) => bytes,
            Storage::F32(v) => bytemuck::cast_slice(v),
            Storage::F16(v) => bytemuck::cast_slice(v),
            Storage::Bf16(v) => bytemuck::cast_slice(v),
            Storage::Groups(v) => v,
            Storage::Part(whole, range) => &whole.bytes()[range.clone()],
        }
    }
}

/// A tensor in host memory, row-major. The bytes are always aligned for the element type.
pub struct HostTensor {
    dtype: DType,
    /// With `Some` the bytes are quantised groups, and `dtype` is the type used to compute with their elements.
    quantised: Option<Groups>,
    shape: Vec<usize>,
    storage: Storage,
}

/// The format of a quantised tensor's bytes.
#[derive(Clone)]
struct Groups {
    kind: QuantType,
    /// With `Some` a matrix's columns are stored in a different order: stored column `i` is column `order[i]`.
    order: Option<Arc<[u32]>>,
}

/// The elements of a [`HostTensor`].
#[derive(Clone, Copy)]
pub enum Elements<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// Brain floating point.
    Bf16(&'a [bf16]),
}

impl Elements<'_> {
    /// Returns the elements widened to f32, which is exact for each type.
    pub fn to_f32(self) -> Vec<f32> {
        match self {
            Elements::F32(v) => v.to_vec(),
            Elements::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
            Elements::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
        }
    }
}

impl HostTensor {
    /// Creates a tensor from the bytes of `map`. The caller must have checked that their number matches the type and
    /// shape. They are copied if the file does not align them.
    pub fn mapped(dtype: DType, shape: Vec<usize>, map: Mapping) -> Self {
        debug_assert_eq!(map.len(), shape.iter().product::<usize>() * dtype.size());
        if (map.as_ptr() as usize).is_multiple_of(dtype.size()) {
            HostTensor { dtype, quantised: None, shape, storage: Storage::Mapped(map) }
        } else {
            Self::copied(dtype, shape, &map)
        }
    }

    /// Creates a tensor of zeros. It takes no memory as long as it is only read.
    ///
    /// # Errors
    /// If there is not enough address space for it.
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> io::Result<Self> {
        let len = shape.iter().try_fold(dtype.size(), |size, &extent| size.checked_mul(extent));
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(HostTensor { dtype, quantised: None, shape, storage: Storage::Zeros(Mapping::zeros(len)?) })
    }

    /// Creates a tensor from bytes compiled into the program. They are copied if they are not aligned.
    pub fn from_static(dtype: DType, shape: Vec<usize>, bytes: &'static [u8]) -> Self {
        if (bytes.as_ptr() as usize).is_multiple_of(dtype.size()) {
            HostTensor { dtype, quantised: None, shape, storage: Storage::Static(bytes) }
        } else {
            Self::copied(dtype, shape, bytes)
        }
    }

    /// Creates a tensor that owns a copy of little-endian `bytes`.
    pub fn copied(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Self {
        let storage = match dtype {
            DType::F32 => Storage::F32(bytemuck::pod_collect_to_vec(bytes)),
            DType::F16 => Storage::F16(bytemuck::pod_collect_to_vec(bytes)),
            DType::Bf16 => Storage::Bf16(bytemuck::pod_collect_to_vec(bytes)),
        };
        HostTensor { dtype, quantised: None, shape, storage }
    }

    /// Creates an f32 tensor from its elements.
    pub fn from_f32(shape: Vec<usize>, elements: Vec<f32>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), elements.len());
        HostTensor { dtype: DType::F32, quantised: None, shape, storage: Storage::F32(elements) }
    }

    /// The element type. For a quantised tensor this is f32, which represents its elements exactly.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether the bytes are in a mapped file. The system can then discard their pages and read them again.
    pub fn is_mapped(&self) -> bool {
        self.mapping().is_some()
    }

    /// Discards the pages of a mapped file that contain the bytes. The next access reads them again.
    pub fn discard_pages(&self) {
        if let Some((map, range)) = self.mapping() {
            map.discard(range);
        }
    }

    /// Returns the mapping that contains the bytes, and where they are.
    fn mapping(&self) -> Option<(&Mapping, Range<usize>)> {
        let (mut storage, mut range) = (&self.storage, 0..self.bytes().len());
        while let Storage::Part(whole, part) = storage {
            (storage, range) = (whole, part.start + range.start..part.start + range.end);
        }
        match storage {
            Storage::Mapped(map) => Some((map, range)),
            _ => None,
        }
    }

    /// The extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes of the elements, in row-major order.
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// The elements in row-major order.
    ///
    /// # Panics
    /// If the tensor is quantised, see [`HostTensor::quantised`].
    pub fn elements(&self) -> Elements<'_> {
        assert!(self.quantised.is_none(), "a quantised tensor has no plain elements");
        let bytes = self.storage.bytes();
        match self.dtype {
            DType::F32 => Elements::F32(bytemuck::cast_slice(bytes)),
            DType::F16 => Elements::F16(bytemuck::cast_slice(bytes)),
            DType::Bf16 => Elements::Bf16(bytemuck::cast_slice(bytes)),
        }
    }

    /// Converts the elements to type `to`, rounding to nearest even where that loses precision. This also decodes a
    /// quantised tensor.
    pub fn to_dtype(self, to: DType) -> Self {
        if self.quantised.is_some() {
            return self.dequantised(to);
        }
        if self.dtype == to {
            return self;
        }
        let wide = self.elements().to_f32();
        let storage = match to {
            DType::F32 => Storage::F32(wide),
            DType::F16 => Storage::F16(wide.into_iter().map(f16::from_f32).collect()),
            DType::Bf16 => Storage::Bf16(wide.into_iter().map(bf16::from_f32).collect()),
        };
        HostTensor { dtype: to, quantised: None, shape: self.shape, storage }
    }

    /// The transpose of a matrix, as an owned tensor.
    ///
    /// # Panics
    /// If the tensor does not have two dimensions, or is quantised.
    pub fn transposed(&self) -> Self {
        let [rows, cols] = *self.shape.as_slice() else { panic!("only a matrix can be transposed") };
        let storage = match self.elements() {
            Elements::F32(v) => Storage::F32(transpose(v, rows, cols)),
            Elements::F16(v) => Storage::F16(transpose(v, rows, cols)),
            Elements::Bf16(v) => Storage::Bf16(transpose(v, rows, cols)),
        };
        HostTensor { dtype: self.dtype, quantised: None, shape: vec![cols, rows], storage }
    }

    /// Copies rows `range` of the outermost dimension. Used to split fused projections.
    pub fn rows(&self, range: Range<usize>) -> Self {
        let size = self.row_bytes();
        let mut shape = self.shape.clone();
        shape[0] = range.len();
        self.like(shape, &self.storage.bytes()[range.start * size..range.end * size])
    }

    /// Bytes per row of the outermost dimension.
    fn row_bytes(&self) -> usize {
        self.bytes_of(self.shape[1..].iter().product())
    }

    /// Bytes of a number of elements.
    fn bytes_of(&self, elements: usize) -> usize {
        match self.quantised() {
            None => elements * self.dtype.size(),
            Some(kind) => elements / kind.group() * kind.group_bytes(),
        }
    }

    /// Creates a tensor of the same type that owns a copy of `bytes`.
    fn like(&self, shape: Vec<usize>, bytes: &[u8]) -> Self {
        match &self.quantised {
            None => Self::copied(self.dtype, shape, bytes),
            Some(groups) => Self::groups(groups.clone(), shape, Storage::Groups(bytes.to_vec())),
        }
    }
}

impl HostTensor {
    /// Restricts the tensor to rows `range` of the outermost dimension without copying. The other rows of a mapped file
    /// are never read.
    pub fn into_rows(self, range: Range<usize>) -> Self {
        if range == (0..self.shape[0]) {
            return self;
        }
        let row = self.row_bytes();
        let mut shape = self.shape;
        shape[0] = range.len();
        let storage = Storage::Part(Arc::new(self.storage), range.start * row..range.end * row);
        HostTensor { shape, storage, ..self }
    }

    /// Divides the tensor into matrices of `rows` rows, without copying. All extents but the last count as rows.
    ///
    /// # Panics
    /// If the number of rows is not a multiple of `rows`.
    pub fn into_matrices(self, rows: usize) -> Vec<HostTensor> {
        let cols = self.shape.last().copied().unwrap_or(1);
        let all: usize = self.shape[..self.shape.len() - 1].iter().product();
        assert!(rows > 0 && all.is_multiple_of(rows), "{all} rows cannot be divided into matrices of {rows}");
        let size = rows * self.bytes_of(cols);
        let HostTensor { dtype, quantised, storage, .. } = self;
        let storage = Arc::new(storage);
        let matrix = |i: usize| HostTensor {
            dtype,
            quantised: quantised.clone(),
            shape: vec![rows, cols],
            storage: Storage::Part(Arc::clone(&storage), i * size..(i + 1) * size),
        };
        (0..all / rows).map(matrix).collect()
    }

    /// Copies columns `range` of a matrix.
    ///
    /// # Errors
    /// [`crate::Error::Option`] if the matrix is quantised and `range` would cut its groups, or its columns are stored
    /// in a different order. The error names the option because columns are only needed to divide a model among
    /// workers.
    ///
    /// # Panics
    /// If the tensor does not have two dimensions.
    pub fn into_cols(self, range: Range<usize>) -> Result<Self> {
        let [rows, cols] = *self.shape.as_slice() else { panic!("only a matrix has columns") };
        if range == (0..cols) {
            return Ok(self);
        }
        let bytes = self.col_bytes(&range)?;
        if matches!(self.storage, Storage::Zeros(_)) {
            // Any zeros will do, and they need not be read.
            let storage = Storage::Part(Arc::new(self.storage), 0..rows * bytes.len());
            return Ok(HostTensor { shape: vec![rows, range.len()], storage, ..self });
        }
        let row = self.row_bytes();
        let part: Vec<u8> = self.bytes().chunks(row).flat_map(|row| &row[bytes.clone()]).copied().collect();
        Ok(self.like(vec![rows, range.len()], &part))
    }
}

fn transpose<T: Copy>(v: &[T], rows: usize, cols: usize) -> Vec<T> {
    (0..cols).flat_map(|c| (0..rows).map(move |r| v[r * cols + c])).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    fn f32s(t: &HostTensor) -> Vec<f32> {
        t.elements().to_f32()
    }

    #[test]
    fn transposes_and_takes_rows() {
        let t = HostTensor::from_f32(vec![2, 3], vec![1., 2., 3., 4., 5., 6.]);
        assert_eq!(f32s(&t.transposed()), [1., 4., 2., 5., 3., 6.]);
        assert_eq!(f32s(&t.rows(1..2)), [4., 5., 6.]);
        assert_eq!(t.rows(1..2).shape(), [1, 3]);
        let (rows, cols) = (t.rows(0..2).into_rows(1..2), t.into_cols(1..3).unwrap());
        assert_eq!((f32s(&rows), rows.shape()), (vec![4., 5., 6.], &[1, 3][..]));
        assert_eq!((f32s(&cols), cols.shape()), (vec![2., 3., 5., 6.], &[2, 2][..]));
    }

    #[test]
    fn matrices_share_the_bytes_of_the_whole() {
        let t = HostTensor::from_f32(vec![2, 2, 3], (0..12u8).map(f32::from).collect());
        let matrices = t.into_matrices(1);
        assert_eq!((matrices.len(), matrices[3].shape()), (4, &[1, 3][..]));
        assert_eq!(f32s(&matrices[2]), [6., 7., 8.]);
        let halves = HostTensor::from_f32(vec![2, 2, 3], (0..12u8).map(f32::from).collect()).into_matrices(2);
        let part = halves.into_iter().nth(1).unwrap().into_rows(1..2);
        assert_eq!((f32s(&part), part.shape()), (vec![9., 10., 11.], &[1, 3][..]));
    }

    #[test]
    fn converts_with_rounding_to_nearest_even() {
        let t = HostTensor::from_f32(vec![2], vec![1.0 + 1.0 / 256.0, 65504.0]);
        assert_eq!(f32s(&t.to_dtype(DType::Bf16)), [1.0, 65536.0]);
    }

    #[test]
    fn zeros_may_exceed_the_available_memory() {
        let t = HostTensor::zeros(DType::F16, vec![1 << 17, 1 << 17]).unwrap();
        assert_eq!((t.bytes().len(), t.bytes()[t.bytes().len() - 1]), (1 << 35, 0));
        assert!(HostTensor::zeros(DType::F32, vec![usize::MAX, 2]).is_err());
    }

    #[test]
    fn misaligned_bytes_are_copied() {
        static BYTES: [u8; 9] = [0, 0, 0, 128, 63, 0, 0, 0, 64];
        assert_eq!(f32s(&HostTensor::from_static(DType::F32, vec![2], &BYTES[1..])), [1.0, 2.0]);
    }
}
