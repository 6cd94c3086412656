//! Elementwise changes of rows and logits.

use kernels::scaling::{Factor, add_rows, multiply_columns, scale_logits, scale_rows, shape};
use kernels::with_element;

use super::norm::rounding;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::number::{ProblemRng, Type, relative_error};

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let (rows, width) = match scale {
        Scale::Small => (3, 1003),
        Scale::Full => (64, 262_144),
    };
    let mut cases = vec![logits(rows, width, 0.25, 0.0), logits(rows, width, 1.0, 20.0)];
    cases.extend(Type::ALL.map(|ty| elements(ty, rows, 776)));
    cases.extend(Type::ALL.map(|ty| sums(ty, rows, 776)));
    cases
        .extend(Type::ALL.into_iter().flat_map(|ty| Factor::ALL.map(|factor| products(ty, rows, 776, (2000, factor)))));
    cases
}

/// Logits that often exceed the cap. 0 is no cap.
pub fn logits(rows: u32, width: u32, factor: f32, cap: f32) -> Case {
    let stride = width + 5;
    let count = (rows * stride) as usize;
    Case {
        kernel: "scale_logits",
        shape: format!("{rows} rows of {width}, cap {cap}"),
        floor: Floor { bytes: 8 * u64::from(rows * width), flops: 0 },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(3);
            let logits: Vec<f32> = (0..count).map(|_| 60.0 * random.unit() as f32).collect();
            let x = gpu.upload("logits", &logits)?;
            let out = gpu.upload("scaled logits", &logits)?;
            let call = scale_logits { x: x.ptr(), out: out.mut_ptr(), width, stride, factor, cap };
            Ok(Prepared {
                // SAFETY: both arrays have these rows.
                launch: Box::new(move |gpu| unsafe { gpu.launch(shape(rows, width), call) }),
                error: Box::new(move |gpu| {
                    let [factor, cap] = [factor, cap].map(f64::from);
                    let one = |s: f64| if cap > 0.0 { cap * (s / cap).tanh() } else { s };
                    let inside = |i: usize| i % (stride as usize) < width as usize;
                    let truth: Vec<f64> = (0..count)
                        .zip(&logits)
                        .map(|(i, &x)| if inside(i) { one(factor * f64::from(x)) } else { x.into() })
                        .collect();
                    Ok(relative_error(gpu.download(out)?.into_iter().map(f64::from), &truth) / 2e-6)
                }),
            })
        }),
    }
}

/// Rows of 16-bit elements.
pub fn elements(ty: Type, rows: u32, width: u32) -> Case {
    let (vectors, stride) = (width / 8, width / 8 + 2);
    let factor = 33.94;
    Case {
        kernel: "scale_rows",
        shape: format!("{}, {rows} rows of {width}", ty.label()),
        floor: Floor { bytes: 4 * u64::from(rows * width), flops: 0 },
        prepare: Box::new(move |gpu| {
            let before = ProblemRng(4).bits(ty, (8 * rows * stride) as usize);
            let x = gpu.upload("x", &before)?;
            let out = gpu.upload("out", &before)?;
            let args = scale_rows { x: x.ptr(), out: out.mut_ptr(), vectors, stride, factor };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            Ok(Prepared {
                // SAFETY: both arrays have these rows.
                launch: Box::new(move |gpu| unsafe { gpu.launch(shape(rows, vectors), call) }),
                error: Box::new(move |gpu| {
                    let inside = |i: usize| (i as u32 / 8) % stride < vectors;
                    let scaled = |i: usize, x: f64| if inside(i) { x * f64::from(factor) } else { x };
                    let truth: Vec<f64> = (0..).zip(&before).map(|(i, &x)| scaled(i, ty.number(x))).collect();
                    let results = gpu.download(out)?.into_iter().map(|x| ty.number(x));
                    Ok(relative_error(results, &truth) / rounding(ty))
                }),
            })
        }),
    }
}

/// Sums of two matrices.
pub fn sums(ty: Type, rows: u32, width: u32) -> Case {
    let vectors = rows * width / 8;
    Case {
        kernel: "add_rows",
        shape: format!("{}, {rows} rows of {width}", ty.label()),
        floor: Floor { bytes: 6 * u64::from(rows * width), flops: 0 },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(6);
            let [x, y] = [(); 2].map(|()| random.bits(ty, (rows * width) as usize));
            let out = gpu.alloc::<u16>("out", x.len())?;
            let args =
                add_rows { x: gpu.upload("x", &x)?.ptr(), y: gpu.upload("y", &y)?.ptr(), out: out.mut_ptr(), vectors };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            Ok(Prepared {
                // SAFETY: all arrays have these rows.
                launch: Box::new(move |gpu| unsafe { gpu.launch(shape(1, vectors), call) }),
                error: Box::new(move |gpu| {
                    let truth: Vec<f64> = x.iter().zip(&y).map(|(&x, &y)| ty.number(x) + ty.number(y)).collect();
                    let results = gpu.download(out)?.into_iter().map(|x| ty.number(x));
                    Ok(relative_error(results, &truth) / rounding(ty))
                }),
            })
        }),
    }
}

/// Products with factors of the columns from 8 on of a matrix with `columns` columns.
pub fn products(ty: Type, rows: u32, width: u32, (columns, factor): (u32, Factor)) -> Case {
    let (vectors, stride) = (width / 8, columns / 8);
    Case {
        kernel: "multiply_columns",
        shape: format!("{}, {rows} rows, {width} of {columns}, {factor:?}", ty.label()),
        floor: Floor { bytes: 6 * u64::from(rows * width), flops: 0 },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(7);
            let [x, by] = [width, columns].map(|width| random.bits(ty, (rows * width) as usize));
            let out = gpu.alloc::<u16>("out", x.len())?;
            let args = multiply_columns {
                x: gpu.upload("x", &x)?.ptr(),
                by: gpu.upload("by", &by)?.ptr().offset(1),
                out: out.mut_ptr(),
                rows,
                vectors,
                stride,
                function: factor as u32,
            };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            Ok(Prepared {
                // SAFETY: all arrays have these rows, and the columns end before the row does.
                launch: Box::new(move |gpu| unsafe { gpu.launch(shape(1, rows * vectors), call) }),
                error: Box::new(move |gpu| {
                    let width = width as usize;
                    let number = |i: usize| ty.number(by[i / width * columns as usize + 8 + i % width]);
                    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
                    let by = |x: f64| match factor {
                        Factor::Plain => x,
                        Factor::Sigmoid => logistic(x),
                        Factor::Silu => x * logistic(x),
                    };
                    let truth: Vec<f64> = x.iter().enumerate().map(|(i, &x)| ty.number(x) * by(number(i))).collect();
                    let results = gpu.download(out)?.into_iter().map(|x| ty.number(x));
                    Ok(relative_error(results, &truth) / rounding(ty))
                }),
            })
        }),
    }
}
