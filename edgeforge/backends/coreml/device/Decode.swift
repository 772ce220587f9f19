// A minimal greedy decode loop over an EdgeForge bundle for Apple's chips: iOS 18, macOS 15 or later.
//
// NOT COMPILED by its authors: no Mac was at hand. The loop is that of edgeforge_runtime (session.py, feeds.py,
// cache.py), which ran over the same packages; where this file and those differ, those are right.
//
//     let decoder = try await Decoder(bundle: url)            // the folder with manifest.json
//     var token = argmax(try await decoder.read(promptIds))   // ids from the bundle's tokenizer
//     while !decoder.manifest.model.eos.contains(token) {
//         print(token)
//         token = argmax(try await decoder.read([token]))
//     }

import CoreML
import Foundation

struct Manifest: Decodable {
    struct Tensor: Decodable { let name: String, dtype: String, shape: [Int] }
    struct Part: Decodable { let file: String, graph: String, inputs: [Tensor], outputs: [Tensor] }
    struct Graph: Decodable { let ar: Int, cl: Int, parts: [Part] }
    struct Target: Decodable { let graphs: [Graph], options: [String: String] }
    struct Model: Decodable {
        let context: Int, eos: [Int], pad: Int, masked: Double, key_axis: Int, value_axis: Int
    }
    let model: Model, targets: [String: Target]
}

enum DecodeError: Error { case noTarget(String), tooLong(Int), noTokens, noOutput(String) }

func argmax(_ logits: [Float]) -> Int { logits.indices.max { logits[$0] < logits[$1] } ?? 0 }

final class Decoder {
    let manifest: Manifest
    private let graphs: [Manifest.Graph]
    private var models: [String: MLModel] = [:]    // by file and function
    private var states: [String: MLState] = [:]    // by file, where the model keeps its cache
    private var caches: [String: MLMultiArray] = [:]
    private var tables: [String: [Float16]] = [:]  // rotary rows by input
    private(set) var length = 0                    // tokens in the cache

    init(bundle: URL, target name: String = "ane") async throws {
        let json = try Data(contentsOf: bundle.appendingPathComponent("manifest.json"))
        manifest = try JSONDecoder().decode(Manifest.self, from: json)
        guard let target = manifest.targets[name] else { throw DecodeError.noTarget(name) }
        graphs = target.graphs
        var compiled: [String: URL] = [:]
        for part in graphs.flatMap(\.parts) {
            if compiled[part.file] == nil {
                var package = bundle.appendingPathComponent(part.file)
                while package.pathExtension != "mlpackage" { package.deleteLastPathComponent() }
                compiled[part.file] = try await MLModel.compileModel(at: package)
            }
            let settings = MLModelConfiguration()
            settings.functionName = part.graph
            settings.computeUnits = target.options["units"] == "CPU_AND_GPU" ? .cpuAndGPU : .cpuAndNeuralEngine
            let model = try await MLModel.load(contentsOf: compiled[part.file]!, configuration: settings)
            models["\(part.file) \(part.graph)"] = model
            if part.inputs.contains(where: { $0.name == "write_index" }), states[part.file] == nil {
                states[part.file] = model.makeState()
            }
            for tensor in part.inputs where tensor.name.hasPrefix("past_") && caches[tensor.name] == nil {
                let cache = try MLMultiArray(shape: tensor.shape.map { NSNumber(value: $0) }, dataType: .float16)
                memset(cache.dataPointer, 0, cache.count * MemoryLayout<Float16>.size)  // masked slots must be finite
                caches[tensor.name] = cache
            }
            for tensor in part.inputs where tensor.name.hasSuffix("_cos") || tensor.name.hasSuffix("_sin") {
                let raw = try Data(contentsOf: bundle.appendingPathComponent("device/\(tensor.name).f16"))
                tables[tensor.name] = raw.withUnsafeBytes { Array($0.bindMemory(to: Float16.self)) }
            }
        }
    }

    /// Reads tokens behind those read before; the last one's logits.
    func read(_ tokens: [Int]) async throws -> [Float] {
        guard !tokens.isEmpty else { throw DecodeError.noTokens }
        guard length + tokens.count <= manifest.model.context else { throw DecodeError.tooLong(length + tokens.count) }
        var logits: [Float] = [], rest = tokens[...]
        while !rest.isEmpty {
            let room = graphs.filter { length <= $0.cl - $0.ar }
            guard let graph = room.filter({ $0.ar >= rest.count }).min(by: { $0.ar < $1.ar })
                    ?? room.max(by: { $0.ar < $1.ar }) else { throw DecodeError.tooLong(length) }
            logits = try await run(graph, Array(rest.prefix(graph.ar)))
            rest = rest.dropFirst(graph.ar)
        }
        return logits
    }

    private func run(_ graph: Manifest.Graph, _ chunk: [Int]) async throws -> [Float] {
        let kept = graph.parts.contains { $0.inputs.contains { $0.name == "write_index" } }
        let first = kept ? 0 : graph.ar - chunk.count  // rows without a token: in front, or behind where slots are kept
        var values: [String: MLFeatureValue] = caches.mapValues { MLFeatureValue(multiArray: $0) }
        for tensor in graph.parts.flatMap(\.inputs) where values[tensor.name] == nil {
            if let made = try feed(tensor, graph, chunk, first, kept) { values[tensor.name] = made }
        }
        for part in graph.parts {
            let given = Dictionary(uniqueKeysWithValues: part.inputs.map { ($0.name, values[$0.name]!) })
            let input = try MLDictionaryFeatureProvider(dictionary: given)
            let model = models["\(part.file) \(part.graph)"]!
            let made: MLFeatureProvider
            if let state = states[part.file] {
                made = try await model.prediction(from: input, using: state)
            } else {
                made = try await model.prediction(from: input)
            }
            for name in made.featureNames { values[name] = made.featureValue(for: name) }
        }
        for (name, cache) in caches {
            let fresh = try array(values, name.replacingOccurrences(of: "_in", with: "_out"))
            let axis = name.hasPrefix("past_key") ? manifest.model.key_axis : manifest.model.value_axis
            copy(fresh, into: cache, axis, from: first, to: length, chunk.count)
        }
        length += chunk.count
        return try logits(values, row: kept ? chunk.count - 1 : 0)
    }

    /// Ids, mask, rotary rows and the first slot; nil for what another part hands over.
    private func feed(_ tensor: Manifest.Tensor, _ graph: Manifest.Graph, _ chunk: [Int], _ first: Int,
                      _ kept: Bool) throws -> MLFeatureValue? {
        let rows = first..<(first + chunk.count)
        switch tensor.name {
        case "write_index":
            return MLFeatureValue(shapedArray: MLShapedArray<Int32>(scalars: [Int32(length)], shape: [1]))
        case "input_ids":
            var ids = [Int32](repeating: Int32(manifest.model.pad), count: graph.ar)
            for (row, id) in zip(rows, chunk) { ids[row] = Int32(id) }
            return MLFeatureValue(shapedArray: MLShapedArray(scalars: ids, shape: tensor.shape))
        case "attention_mask":
            var mask = [Float16](repeating: Float16(manifest.model.masked), count: graph.ar * graph.cl)
            let own = kept ? length : graph.cl - graph.ar + first  // column of the chunk's first token
            for (index, row) in rows.enumerated() {
                for column in 0..<length { mask[row * graph.cl + column] = 0 }
                for column in own...(own + index) { mask[row * graph.cl + column] = 0 }
            }
            return MLFeatureValue(shapedArray: MLShapedArray(scalars: mask, shape: tensor.shape))
        default:
            guard let table = tables[tensor.name], let size = tensor.shape.last else { return nil }
            var made = [Float16]()
            for row in 0..<graph.ar {
                let position = rows.contains(row) ? length + row - first : 0
                made += table[(position * size)..<((position + 1) * size)]
            }
            return MLFeatureValue(shapedArray: MLShapedArray(scalars: made, shape: tensor.shape))
        }
    }

    /// count tokens of fresh, from one place along axis to another of cache.
    private func copy(_ fresh: MLShapedArray<Float16>, into cache: MLMultiArray, _ axis: Int, from: Int, to: Int,
                      _ count: Int) {
        let shape = cache.shape.map(\.intValue), source = fresh.scalars, slots = shape[axis], width = fresh.shape[axis]
        let outer = shape[..<axis].reduce(1, *), inner = shape[(axis + 1)...].reduce(1, *)
        let target = cache.dataPointer.bindMemory(to: Float16.self, capacity: cache.count)  // ours, so without gaps
        for o in 0..<outer {
            for t in 0..<count {
                for i in 0..<inner {
                    target[(o * slots + to + t) * inner + i] = source[(o * width + from + t) * inner + i]
                }
            }
        }
    }

    /// One row; a large vocabulary leaves in pieces, logits_0, logits_1, ...
    private func logits(_ values: [String: MLFeatureValue], row: Int) throws -> [Float] {
        var names = values["logits"] != nil ? ["logits"] : []
        while values["logits"] == nil, values["logits_\(names.count)"] != nil { names.append("logits_\(names.count)") }
        return try names.flatMap { name -> [Float] in
            let piece = try array(values, name), size = piece.shape.last!
            return piece.scalars[(row * size)..<((row + 1) * size)].map { Float($0) }
        }
    }

    private func array(_ values: [String: MLFeatureValue], _ name: String) throws -> MLShapedArray<Float16> {
        guard let held = values[name]?.multiArrayValue else { throw DecodeError.noOutput(name) }
        return MLShapedArray<Float16>(held)
    }
}
