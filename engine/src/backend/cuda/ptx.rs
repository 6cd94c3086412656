//! The kernels' PTX, embedded by the build script for each kind of GPU. Statics, since each use of a constant would embed
//! it again.

/// PTX for one kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// The GPU it is for, as compilers name it.
    pub arch: &'static str,
    /// The PTX, as text.
    pub text: &'static str,
}

impl Image {
    /// The version of the PTX language that the text is written in, and the first version of CUDA that knows it.
    ///
    /// # Panics
    /// If the text does not say: the build script's would not be PTX.
    pub fn version(&self) -> (&'static str, (i32, i32)) {
        let isa = self.text.lines().find_map(|line| line.strip_prefix(".version ")).unwrap_or_default().trim();
        let number = |text: &str| text.parse::<i32>().ok();
        let Some((major, minor)) = isa.split_once('.').and_then(|(a, b)| number(a).zip(number(b))) else {
            panic!("the PTX for {} names no version", self.arch);
        };
        // PTX 6.3 came with CUDA 10.0, 7.0 with 11.0, and 8.0 with 12.0; each has gone along with CUDA's minor versions since.
        (isa, (major + 4, minor))
    }
}

/// For Ampere and everything after it.
pub static SM_80: Image = Image { arch: "sm_80", text: include_str!(concat!(env!("OUT_DIR"), "/sm_80.ptx")) };

/// For Hopper alone: what an `a` target has is in no later GPU.
pub static SM_90A: Image = Image { arch: "sm_90a", text: include_str!(concat!(env!("OUT_DIR"), "/sm_90a.ptx")) };

/// The image for a GPU of this compute capability, or none if it is too old to run the kernels.
pub fn for_capability(major: u32, minor: u32) -> Option<Image> {
    match (major, minor) {
        (9, 0) => Some(SM_90A),
        (8.., _) => Some(SM_80),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_gets_code_that_it_can_run() {
        assert_eq!(for_capability(7, 5), None);
        assert_eq!(for_capability(8, 0), Some(SM_80));
        assert_eq!(for_capability(8, 9), Some(SM_80));
        assert_eq!(for_capability(9, 0), Some(SM_90A));
        assert_eq!(for_capability(10, 0), Some(SM_80), "sm_90a runs on sm_90 only");
    }

    #[test]
    fn images_say_what_cuda_they_need() {
        assert_eq!((SM_80.version(), SM_90A.version()), (("7.0", (11, 0)), ("8.0", (12, 0))));
    }

    #[test]
    fn the_images_have_every_kernel() {
        for image in [SM_80, SM_90A] {
            assert!(image.text.contains(&format!("\n.target {}\n", image.arch)));
            for kernel in kernels::registry::shipped() {
                let entry = format!("\n.visible .entry {}(", kernel.name);
                assert!(image.text.contains(&entry), "{} for {}", kernel.name, image.arch);
            }
        }
    }
}
