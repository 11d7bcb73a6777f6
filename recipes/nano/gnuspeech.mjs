// Speaks for speech.GnuSpeech: `node gnuspeech.mjs FOLDER`, where FOLDER holds node_modules.
// Each line of input is JSON, {text, files}; the files go to the synthesiser's data folder first.
// Each answer is a line with a WAV file in base64.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const require = createRequire(pathToFileURL(process.argv[2] + '/'))
const main = require.resolve('@echogarden/gnuspeech-wasm')
const load = (path) => import(pathToFileURL(path))
const { default: start } = await load(main.replace('dist/exports/GnuSpeech.js', 'wasm/gnuspeech.js'))
const { wrapEmscriptenModuleHeap } = await load(require.resolve('wasm-heap-manager'))
const module = await start()
const heap = wrapEmscriptenModuleHeap(module)
const [wav, data] = ['./out.wav', '/data/en']

for await (const line of createInterface({ input: process.stdin })) {
  const { text, files } = JSON.parse(line)
  for (const [name, content] of Object.entries(files)) module.FS.writeFile(`${data}/${name}`, content)
  const strings = [text, wav, data, './parameters.txt'].map((s) => heap.allocNullTerminatedUtf8String(s))
  module._GnuSpeech_synthesizeToFile(...strings.map((s) => s.address), false)
  for (const s of strings) s.free()
  process.stdout.write(Buffer.from(module.FS.readFile(wav)).toString('base64') + '\n')
}
