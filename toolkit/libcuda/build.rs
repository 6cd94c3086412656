//! Gives the library the name under which programs know it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // What it has to say when the program ends is said even if the program has let go of it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
