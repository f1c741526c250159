# Reads arrays of a release.zarr or a model.zarr. Needs JSON.jl and nothing else.
using JSON

"What is said of a release or a model: mechanism, guarantee, columns, and more."
describe(folder) = JSON.parsefile(joinpath(folder, "zarr.json"))["attributes"]["dpdist"]

"One array: a vector, or a matrix of as many rows and columns as it has."
function read_array(folder, name)
    place = joinpath(folder, name)
    about = JSON.parsefile(joinpath(place, "zarr.json"))
    @assert [codec["name"] for codec in about["codecs"]] == ["bytes", "crc32c"]
    kind = Dict("float64" => Float64, "int64" => Int64)[about["data_type"]]
    shape = Int.(about["shape"])
    chunk = Int.(about["chunk_grid"]["configuration"]["chunk_shape"])
    rows, columns = shape[1], length(shape) == 2 ? shape[2] : 1
    high, wide = chunk[1], length(chunk) == 2 ? chunk[2] : 1
    found = zeros(kind, rows, columns)
    for start in 0:high:(rows - 1), left in 0:wide:(columns - 1)
        key = length(shape) == 2 ? joinpath(string(start ÷ high), string(left ÷ wide)) : string(start ÷ high)
        values = open(joinpath(place, "c", key)) do file
            ltoh.(read!(file, Array{kind}(undef, wide, high)))
        end
        block = permutedims(values)  # the last dimension runs fastest in the file
        stop, right = min(start + high, rows), min(left + wide, columns)
        found[(start + 1):stop, (left + 1):right] = block[1:(stop - start), 1:(right - left)]
    end
    length(shape) == 1 ? vec(found) : found
end
