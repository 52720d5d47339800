import { globSync } from 'node:fs'
import { relative } from 'node:path'

const COMPONENTS = globSync('src/**/*.svelte', { cwd: import.meta.dirname }).sort()

/** @type {import('@sveltejs/vite-plugin-svelte').SvelteConfig} */
export default {
  compilerOptions: {
    runes: true,
    // The class that scopes a component's styles stands on most of its elements: a number is short.
    cssHash: ({ filename }) => `s${COMPONENTS.indexOf(relative(import.meta.dirname, filename)).toString(36)}`,
  },
}
