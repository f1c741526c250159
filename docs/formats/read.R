# Reads arrays of a release.zarr or a model.zarr. Needs jsonlite (Debian: r-cran-jsonlite) and nothing else.

describe <- function(folder) {
  # What is said of a release or a model: mechanism, guarantee, columns, and more.
  jsonlite::fromJSON(file.path(folder, "zarr.json"), simplifyVector = FALSE)$attributes$dpdist
}

read_array <- function(folder, name) {
  # One array: a vector, or a matrix of as many rows and columns as it has.
  place <- file.path(folder, name)
  about <- jsonlite::fromJSON(file.path(place, "zarr.json"))
  codecs <- about$codecs$name
  stopifnot(about$data_type %in% c("float64", "int64"), identical(codecs, c("bytes", "crc32c")))
  shape <- about$shape
  high <- about$chunk_grid$configuration$chunk_shape
  wide <- if (length(shape) == 2) shape[2] else 1
  found <- matrix(0, shape[1], wide)
  for (start in seq(0, shape[1] - 1, by = high[1])) {
    for (left in seq(0, wide - 1, by = if (length(high) == 2) high[2] else 1)) {
      key <- start / high[1]
      if (length(shape) == 2) key <- paste(key, left / high[2], sep = "/")
      width <- if (length(high) == 2) high[2] else 1
      file <- file.path(place, "c", key)
      values <- if (about$data_type == "float64") {
        readBin(file, "double", high[1] * width, endian = "little")
      } else {  # R has no integers of 64 bits: those beyond 2^53 are rounded to the nearest double
        parts <- matrix(readBin(file, "integer", 2 * high[1] * width, endian = "little"), nrow = 2)
        parts[2, ] * 2^32 + ifelse(parts[1, ] < 0, parts[1, ] + 2^32, parts[1, ])
      }
      block <- matrix(values, high[1], width, byrow = TRUE)
      rows <- seq(start + 1, min(start + high[1], shape[1]))
      columns <- seq(left + 1, min(left + width, wide))
      found[rows, columns] <- block[seq_along(rows), seq_along(columns)]
    }
  }
  if (length(shape) == 1) as.vector(found) else found
}
