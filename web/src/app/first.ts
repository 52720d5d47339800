// Runs before the first paint, so that a remembered theme never flashes in the other one. It imports nothing: it is
// built into a classic script of its own (see vite.config.ts), because the content security policy allows none in the
// page itself. The rest of the theme lives in theme.ts.
try {
  const theme = localStorage.getItem('gpudeck.theme')
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset['theme'] = theme
} catch {
  // Storage may be forbidden: the system's theme is used.
}
