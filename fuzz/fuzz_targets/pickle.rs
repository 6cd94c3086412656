//! Fuzzes PyTorch files. The input is the whole file, or the pickle inside an intact archive with some storages.

#![no_main]

use std::cell::RefCell;
use std::io::{Cursor, Seek, SeekFrom, Write};

use engine::tools::load::Weights;
use libfuzzer_sys::fuzz_target;
use tempfile::NamedTempFile;

thread_local! {
    static FILE: RefCell<NamedTempFile> = RefCell::new(NamedTempFile::new().expect("a temporary file"));
}

fuzz_target!(|data: &[u8]| {
    let Some((form, data)) = data.split_first() else { return };
    let file = if form % 4 == 0 { data.to_vec() } else { archive(data) };
    FILE.with_borrow_mut(|out| {
        let opened = out.as_file_mut();
        opened.set_len(0).expect("a temporary file can be emptied");
        opened.seek(SeekFrom::Start(0)).expect("a temporary file can be rewound");
        opened.write_all(&file).expect("a temporary file can be written");
        let Ok(mut weights) = Weights::from_pickle(out.path(), None) else { return };
        let tensors: Vec<_> =
            weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap_or_default().to_vec())).collect();
        for (name, shape) in tensors {
            // A view may repeat a small storage. The size of the result is bounded, but large ones are slow to read
            // here.
            if shape.iter().product::<usize>() < 1 << 20 {
                let _ = weights.take(&name, &shape).map(|tensor| tensor.elements().to_f32());
            }
        }
    });
});

fn archive(pickle: &[u8]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let storages = (0..4).map(|key| (format!("archive/data/{key}"), vec![key; 1024]));
    for (name, bytes) in std::iter::once(("archive/data.pkl".to_owned(), pickle.to_vec())).chain(storages) {
        writer.start_file(name, options).expect("an archive in memory");
        writer.write_all(&bytes).expect("an archive in memory");
    }
    writer.finish().expect("an archive in memory").into_inner()
}
