import js from '@eslint/js'
import svelte from 'eslint-plugin-svelte'
import globals from 'globals'
import ts from 'typescript-eslint'

/** The folders of src, lowest first. A folder imports from itself and from those before it. */
const FOLDERS = ['api', 'ui', 'stream', 'time', 'charts', 'account', 'reservations', 'maintenance', 'events', 'usage', 'gpu', 'jobs', 'host', 'users', 'fleet', 'app']
/** What each page is given: every page may name these types. */
const PAGE_PROPS = ['app/pages', 'fleet/fleetStore.svelte']

const boundaries = FOLDERS.map((folder, at) => {
  const above = FOLDERS.slice(at + 1)
  const types = PAGE_PROPS.filter((path) => above.includes(path.split('/')[0]))
  const message = `${folder} imports only from: ${[...FOLDERS.slice(0, at), folder].join(', ')} (eslint.config.js)`
  const patterns = [
    { group: [...above.map((name) => `../${name}/*`), ...types.map((path) => `!../${path}`)], message },
    ...(types.length === 0 ? [] : [{ group: types.map((path) => `../${path}`), allowTypeImports: true, message }]),
  ]
  return {
    files: [`src/${folder}/**/*.{ts,svelte}`],
    ignores: ['**/*.test.ts'],
    rules: { '@typescript-eslint/no-restricted-imports': above.length === 0 ? 'off' : ['error', { patterns }] },
  }
})

export default ts.config(
  { ignores: ['dist', 'src/api/schema.d.ts'] },
  js.configs.recommended,
  ts.configs.recommended,
  svelte.configs.recommended,
  { languageOptions: { globals: { ...globals.browser, ...globals.node } } },
  { files: ['**/*.svelte', '**/*.svelte.ts'], languageOptions: { parserOptions: { parser: ts.parser } } },
  {
    rules: {
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_', caughtErrorsIgnorePattern: '^_' }],
      // {' '} keeps a space that the formatting of the source would lose.
      'svelte/no-useless-mustaches': 'off',
      // The fleet is plain objects behind version counters (stream/version.svelte.ts).
      'svelte/prefer-svelte-reactivity': 'off',
      // A variable outside a `$derived` keeps its last value for the next run.
      'no-useless-assignment': 'off',
    },
  },
  ...boundaries,
)
