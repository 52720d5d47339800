import { svelte } from '@sveltejs/vite-plugin-svelte'
import { loadEnv, type Plugin } from 'vite'
import { defineConfig } from 'vitest/config'

/** Puts src/app/first.ts before everything else: a module would run after the first paint. */
function runFirst(): Plugin {
  return {
    name: 'gpudeck:run-first',
    transformIndexHtml: {
      order: 'post',
      handler(_html, { bundle }) {
        const built = Object.keys(bundle ?? {}).find((file) => /^assets\/first-[^/]*\.js$/.test(file))
        const attrs = built === undefined ? { type: 'module', src: '/src/app/first.ts' } : { src: `./${built}` }
        return [{ tag: 'script', attrs, injectTo: 'head' }]
      },
    },
  }
}

const MOUNTED = 'src/**/*.mount.test.ts'

export default defineConfig(({ mode }) => ({
  // Relative addresses only: the hub may live below any path prefix.
  base: './',
  plugins: [svelte(), runFirst()],
  build: {
    target: 'es2022',
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    // Nothing is inlined: the hub's content security policy allows files only.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    // One file is two thirds of thirty, and the first view has room for it.
    cssCodeSplit: false,
    rolldownOptions: {
      input: { index: 'index.html', first: 'src/app/first.ts' },
      // One file for the first view, and one for what several other pages have in common: they compress better than many.
      output: {
        codeSplitting: {
          groups: [
            { name: 'page', tags: ['$initial'], test: /^(?!.*\/app\/first\.ts)/, priority: 1 },
            { name: 'shared', minShareCount: 2 },
          ],
        },
      },
    },
  },
  // `npm run dev` shows the page from source; the figures come from a hub that runs beside it.
  server: { proxy: { '/api': loadEnv(mode, '.', 'GPUDECK_')['GPUDECK_HUB'] ?? 'http://127.0.0.1:8042' } },
  test: {
    // One environment for all files of a worker: one for each of them would take five times the CPU time.
    isolate: false,
    projects: [
      { extends: true, test: { name: 'node', environment: 'node', include: ['src/**/*.test.ts'], exclude: [MOUNTED] } },
      // Components, mounted into a document: what they show has to follow the fleet.
      { extends: true, resolve: { conditions: ['browser'] }, test: { name: 'dom', environment: 'happy-dom', include: [MOUNTED] } },
    ],
  },
}))
