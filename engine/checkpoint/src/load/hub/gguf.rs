//! GGUF files from the hub: one file of a repository with many, selected by name or by type.

use std::fs;
use std::path::{Component, Path, PathBuf};

use hf_hub::{Cache, Repo};

use super::{Download, cached_snapshot};
use crate::error::{Error, Result};
use crate::load::gguf::part_names;
use crate::load::names::{has_type, is_gguf};
use crate::load::settings::HubSettings;

/// Returns the path of a GGUF file of the repository `id`. `wanted` is the file's name or type. The file and its other
/// parts are fetched unless they are cached.
pub(in crate::load) fn fetch(id: &str, wanted: &str, progress: bool, settings: &HubSettings) -> Result<PathBuf> {
    let cache = settings.cache_dir.display();
    let missing = match cached_snapshot(&Cache::new(settings.cache_dir.clone()), id) {
        None => format!("it is not in the cache in {cache}"),
        Some(directory) => {
            let has = |file: &str| directory.join(file).exists();
            match choose(&files(&directory), wanted).filter(|file| part_names(file).iter().all(|part| has(part))) {
                Some(file) => return Ok(directory.join(file)),
                None => format!("the cache in {cache} lacks its {wanted}"),
            }
        }
    };
    let download = Download::new(id, progress, settings, missing)?;
    let Some(file) = choose(&download.files, wanted) else {
        let some: Vec<&str> = download.files.iter().map(String::as_str).filter(|file| is_gguf(file)).take(8).collect();
        return Err(Error::Hub(match some.is_empty() {
            true => format!("{id} has no GGUF files"),
            false => format!("{id} has no GGUF file {wanted:?}; it has {}", some.join(", ")),
        }));
    };
    for part in part_names(&file) {
        download.get(&part)?;
    }
    let main = download.cache.repo(Repo::model(id.to_owned()));
    main.create_ref(&download.commit).map_err(|error| Error::io(download.cache.path(), error))?;
    Ok(main.pointer_path(&download.commit).join(file))
}

/// Returns the file of this name, or else the file of this type with the shortest name.
fn choose(files: &[String], wanted: &str) -> Option<String> {
    let inside = |file: &&String| Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if is_gguf(wanted) {
        return files.iter().filter(inside).find(|file| *file == wanted).cloned();
    }
    let fitting = files.iter().filter(inside).filter(|file| has_type(file, wanted));
    fitting.min_by_key(|file| (file.len(), file.as_str())).cloned()
}

/// Returns the GGUF files of a snapshot, including those in its subdirectories.
fn files(directory: &Path) -> Vec<String> {
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let inside = |name: String| {
        let folder = names(&directory.join(&name));
        let files = folder.into_iter().map(|file| format!("{name}/{file}")).collect::<Vec<_>>();
        [vec![name], files].concat()
    };
    names(directory).into_iter().flat_map(inside).filter(|file| is_gguf(file)).collect()
}
